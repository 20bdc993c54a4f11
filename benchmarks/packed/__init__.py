"""GGUF files as they are: Graft beside llama.cpp, and packed beside dequantised weights."""
