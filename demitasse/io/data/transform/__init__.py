"""Transformations of records for a net: crop, mirror, mean, scale and SSD's augmentation."""
