"""From names to drafters, verifiers and engines."""
