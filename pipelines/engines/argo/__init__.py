"""The engine for Argo Workflows: its templates, what runs in a pod, and releases as Workflows."""
