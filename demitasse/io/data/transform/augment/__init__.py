"""SSD's augmentation fields of ``transform_param``."""
