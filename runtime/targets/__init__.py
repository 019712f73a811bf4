"""Targets and hardware: what a machine is, the site's catalogue, what a target can run."""
