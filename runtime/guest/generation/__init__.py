"""Text generation inside Triton's Python backend: the model, the code around it, and one of several engines."""
