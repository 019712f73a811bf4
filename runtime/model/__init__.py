"""Models and their data: contracts, tensors, samples, ONNX graphs, conversion."""
