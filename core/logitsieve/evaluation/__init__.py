"""How right and how fast a head is."""
