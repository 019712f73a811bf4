"""`graphs/guards.py`, as it is called in packages."""

from shiplift.runtime.guest.graphs.guards import Guards as Guards
