"""Functions in plain PyTorch that exported modules bring with them; nothing here imports them."""
