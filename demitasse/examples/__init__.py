"""Examples that come with the package and run without a download."""
