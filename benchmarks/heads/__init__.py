"""Draft heads: training data, costs, shipping."""
