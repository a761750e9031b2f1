"""Rows as they are stored, in half types and in blocks of ggml's, as float32 where needed."""
