"""`python/keeper.py`, as it is called in bundles."""

from shiplift.runtime.guest.python.keeper import Keeper as Keeper
