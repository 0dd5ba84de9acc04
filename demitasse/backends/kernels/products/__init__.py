"""Products of matrices, one of them small, whose sums stay in registers."""
