"""Built corpora: on disk, or in Milvus."""
