"""Tensor functions; they know no model and no tree object."""
