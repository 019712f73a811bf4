"""Shiplift on a cluster: its values and its manifests, installing and removing it."""
