"""Shared vocabulary of logitsieve: results, errors, the Decoder protocol, tensors on the wire."""
