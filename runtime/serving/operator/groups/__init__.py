"""A revision's groups: one for each target, on nodes of its own, with a share of the revision's traffic; all pure."""
