"""Drift: captured requests and answers against the data that a version was validated on, column by column."""
