"""The search for a serving configuration: which points there are, what one is worth, which to measure next, and on what."""
