"""Tokens, certificates and the access checks."""
