"""All lowerings of the backend; importing this registers them."""

from demitasse.backends.onednn import convolution

__all__ = ["convolution"]
