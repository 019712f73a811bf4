"""A kind of model of a test's own, as somebody would add one: a folder, and a line in the table of families."""
