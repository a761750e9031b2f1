"""Rows in half types and in ggml's blocks, read as float32."""
