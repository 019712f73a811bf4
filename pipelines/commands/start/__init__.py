"""Commands to begin with: files to start from, targets to name, a demo."""
