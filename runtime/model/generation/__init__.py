"""Models that generate text: their export, and the comparison of their answers."""
