"""This machine as an engine: the embedded stack, its releases, and the runner that walks one."""
