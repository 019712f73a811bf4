"""Confines a process before it meets hostile input: namespaces, Landlock, seccomp, limits, an init that ends all."""
