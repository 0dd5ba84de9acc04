"""Weights in and out of nets: caffemodels, HDF5 files, and what belongs to which parameter."""
