"""Precisions of a model: how they are built, and what each costs in accuracy."""
