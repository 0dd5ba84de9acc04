"""Data layers: batches from databases, lists of images, HDF5 files, arrays and fillers."""
