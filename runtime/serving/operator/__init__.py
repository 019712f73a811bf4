"""The operator of `TritonService` objects: what should serve, what does, and what to do about the difference."""
