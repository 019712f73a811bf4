"""Triton Inference Server: the bundled server, its client, its configuration and its model repositories."""
