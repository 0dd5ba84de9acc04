"""Messages with large arrays, read and written without copying the arrays."""
