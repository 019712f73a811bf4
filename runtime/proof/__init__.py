"""Is what will be served the author's model? Questions to ask, and what asks and compares."""
