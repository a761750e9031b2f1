"""What training with a sub-linear softmax costs, and what is learned by it."""
