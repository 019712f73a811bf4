"""The search for a serving configuration: which points there are, what one is worth, and which to measure next."""
