"""Shiplift on a cluster: values, manifests, installation and removal."""
