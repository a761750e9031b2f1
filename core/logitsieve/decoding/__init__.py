"""From logits to decisions."""
