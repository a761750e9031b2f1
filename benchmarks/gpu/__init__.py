"""What a call costs on a GPU, beside PyTorch's: `python -m benchmarks.gpu`."""
