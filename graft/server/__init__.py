"""The HTTP server: OpenAI's routes around one engine."""
