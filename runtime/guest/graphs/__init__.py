"""Code that runs ONNX graphs inside Triton's Python backend, where the backends in C can't."""
