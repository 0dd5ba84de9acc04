"""What is done to records on their way into a net."""
