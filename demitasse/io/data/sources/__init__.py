"""Sources of batches: databases, image lists, HDF5 files, windows, memory."""
