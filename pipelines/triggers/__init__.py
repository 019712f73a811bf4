"""What starts releases: webhooks, git pushes, and sweeps that find what webhooks missed."""
