"""Triton model repositories that are adopted: what they hold, and what is wrong with them. Nothing in them is run."""
