"""This machine: processes, the sandbox, the scanner that runs in it."""
