"""The operator's eyes and hands on a cluster; what to do with them is decided in `operator.deciding`."""
