"""Steps of the oneDNN backend, one file for each family of operations."""
