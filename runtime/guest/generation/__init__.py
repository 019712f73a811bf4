"""Text generation inside Triton's Python backend: the model, what is around it, and one engine of several."""
