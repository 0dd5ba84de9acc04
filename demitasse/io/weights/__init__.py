"""Weights of nets: caffemodel, HDF5, npz, safetensors, and state_dicts of PyTorch."""
