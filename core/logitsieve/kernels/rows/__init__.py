"""Stored rows, in half types and in ggml's blocks, as float32."""
