"""Vector lanes and the dot products that are made of them."""
