"""The operator's eyes and hands on a cluster. `operator.deciding` decides what to do with them."""
