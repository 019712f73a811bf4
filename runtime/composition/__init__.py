"""Pipelines of models as pure data: what a definition means, whether its edges fit, and how it can run."""
