"""Vector lanes, and dot products made of them."""
