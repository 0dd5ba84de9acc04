"""What writes layers down in operators of ONNX, by family."""
