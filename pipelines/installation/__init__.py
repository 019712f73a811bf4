"""Shiplift on a cluster: its values, its manifests, installing and removing them."""
