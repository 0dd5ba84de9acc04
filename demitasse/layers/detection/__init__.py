"""Detection layers, and their boxes, matching and mining."""
