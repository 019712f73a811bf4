"""Kubernetes objects as data: what a platform engineer would have written by hand."""
