"""The task metrics: how predictions are scored on labels, and how sure that is."""
