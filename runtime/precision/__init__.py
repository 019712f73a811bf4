"""Precisions of a model: building them, and what each costs in accuracy."""
