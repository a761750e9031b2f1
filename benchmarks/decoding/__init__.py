"""Draws, log Z and perplexity: how right they are, and what they cost."""
