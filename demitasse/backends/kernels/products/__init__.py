"""Products of small matrices whose sums stay in registers."""
