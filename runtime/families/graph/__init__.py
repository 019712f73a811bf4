"""Models that become a graph of tensors: ONNX, PyTorch, trees, Keras."""
