"""The data path: databases, records, transformation, and batches made ahead of time."""
