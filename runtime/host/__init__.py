"""This machine: processes, scratch folders, and the scanner that runs in the sandbox."""
