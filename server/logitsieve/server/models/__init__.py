"""Model versions."""
