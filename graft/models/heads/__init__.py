"""Draft heads: their files, and runners that draft for a target."""
