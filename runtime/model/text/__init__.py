"""Models that take text: what they answer, and the code that tokenizes and answers wherever they run."""
