"""Measuring on a GPU machine without a network: what it needs, in pieces that can be sent."""
