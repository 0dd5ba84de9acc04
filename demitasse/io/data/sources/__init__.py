"""Where batches come from: databases, lists of images, HDF5 files, windows, memory."""
