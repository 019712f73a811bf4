"""What runs beside a server in its pod, in any image: only Python's standard library is sure to be there."""
