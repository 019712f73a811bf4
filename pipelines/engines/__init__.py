"""Where releases run: the core that every engine shares, this machine, and Argo Workflows."""
