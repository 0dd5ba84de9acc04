"""Images as arrays (C, H, W): decoding, encoding, sizes, colours."""
