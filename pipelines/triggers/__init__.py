"""What starts a release: webhooks, git pushes, and the sweep that finds what both missed."""
