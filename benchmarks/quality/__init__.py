"""Quality of answers: scores against gold, intervals, power."""
