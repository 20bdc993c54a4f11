"""How good answers are, beside how fast they came: scores against gold, intervals, power."""
