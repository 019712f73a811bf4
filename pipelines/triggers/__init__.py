"""What starts releases: webhooks, git pushes, and the registry sweep that finds what they missed."""
