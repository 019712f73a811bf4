"""This machine: processes, the sandbox, and the scanner that runs inside it."""
