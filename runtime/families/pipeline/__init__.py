"""Pipelines of models."""
