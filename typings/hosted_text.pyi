"""`generation/hosted_text.py`, as it is called in packages."""

from shiplift.runtime.guest.generation.hosted_text import HostedWriter as HostedWriter
