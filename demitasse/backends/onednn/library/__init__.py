"""oneDNN's C interface: the library, its constants, and primitives over layouts."""
