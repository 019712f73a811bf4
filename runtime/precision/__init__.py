"""Precisions of a model: how they are built, and how much accuracy each costs."""
