"""The search for a serving configuration: which points there are, what each is worth, and where it is measured."""
