"""A revision's groups: one for each target, on its own nodes, with a share of the revision's traffic. All pure."""
