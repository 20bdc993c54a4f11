"""Draft heads: their files, and heads at work for a target."""
