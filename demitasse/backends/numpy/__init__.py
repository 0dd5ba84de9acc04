"""numpy on the host: portable layers, and Steps for what array functions do slowly."""
