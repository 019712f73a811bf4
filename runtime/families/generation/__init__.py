"""Models that continue texts."""
