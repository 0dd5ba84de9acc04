"""Our own kernels of convolutions: a module for each kind, and one that chooses."""
