"""The task metrics: how predictions are scored against labels, and how certain a score is."""
