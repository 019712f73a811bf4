"""Argo Workflows as an engine: its templates, a stage in a pod, and releases as Workflows."""
