"""Confines a process before it meets hostile input: namespaces, Landlock, seccomp, limits, and an init that ends it."""
