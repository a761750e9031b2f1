"""How a sampled softmax draws its candidates: a file for each method."""
