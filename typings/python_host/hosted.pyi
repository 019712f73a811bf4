"""`python/hosted.py`, as it is called in packages."""

from shiplift.runtime.guest.python.hosted import HostedModel as HostedModel
