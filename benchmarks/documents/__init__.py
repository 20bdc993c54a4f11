"""Real files of many formats, read, retrieved and cited by a running server."""
