"""Models in the formats of other frameworks: export to ONNX and PyTorch, import from ONNX."""
