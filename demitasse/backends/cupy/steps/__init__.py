"""Steps of the cupy backend, one file for each family of operations."""
