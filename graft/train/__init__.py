"""Training draft heads: data, losses, the loop, and a run that can be stopped anywhere."""
