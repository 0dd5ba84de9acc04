"""Code that the exports to ONNX and PyTorch share."""
