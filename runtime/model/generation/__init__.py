"""Models that generate text: their export, and the code that generates wherever they run."""
