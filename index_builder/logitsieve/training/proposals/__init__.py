"""Ways to draw the candidates of a sampled softmax."""
