"""Models that take text: their tasks, their samples, and comparisons of their answers."""
