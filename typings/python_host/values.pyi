"""`python/values.py`, as it is called in packages."""

from shiplift.runtime.guest.python.values import as_served as as_served
