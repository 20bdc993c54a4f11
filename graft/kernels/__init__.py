"""Tensor functions, independent of models and draft trees."""
