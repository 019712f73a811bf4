"""What each file format may contain: readers that only look at a file, and never load or run any of it."""
