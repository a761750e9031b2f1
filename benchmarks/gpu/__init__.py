"""What a call costs on a card, beside PyTorch's: `python -m benchmarks.gpu`."""
