"""The engine for this machine: the embedded stack, its releases, and the runner that walks through a release."""
