"""Commands to get started: example files, targets, a demo."""
