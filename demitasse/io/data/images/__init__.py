"""Images as arrays (C, H, W): decoding, sizes, colours."""
