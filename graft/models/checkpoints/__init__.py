"""From a name to a folder with weights and a tokenizer."""
