"""What several layers compute alike."""
