"""What each file format may contain: readers that open nothing they read, and never run any of it."""
