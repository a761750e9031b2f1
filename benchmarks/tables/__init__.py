"""The tables and figures of the documentation, written from the raw results."""
