"""What operators of ONNX become, one family a file."""
