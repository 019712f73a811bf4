"""Pipelines of models inside Triton's Python backend, and the process that runs their author's Python."""
