"""Code that runs beside a server in its pod, in any image. It can count only on Python's standard library."""
