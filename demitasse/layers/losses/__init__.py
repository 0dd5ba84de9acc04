"""Losses: each says what it loses at every target and how that slopes; the base does the rest."""
