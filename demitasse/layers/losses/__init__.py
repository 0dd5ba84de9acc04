"""Losses: each computes losses and gradients per target; the base class sums and normalizes."""
