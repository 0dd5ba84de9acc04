"""What detection layers share: boxes and regions."""
