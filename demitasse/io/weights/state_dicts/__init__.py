"""Parameters of layers as state_dicts of PyTorch, and back."""
