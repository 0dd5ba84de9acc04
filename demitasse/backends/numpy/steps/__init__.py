"""Steps of the numpy backend, one file for each family of operations."""
