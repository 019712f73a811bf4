"""The types of what the package has besides its rooms, which `__init__.py` imports when it is first used."""

from shiplift.pipelines.discovery import discover as discover
from shiplift.pipelines.discovery import tracking_uri as tracking_uri
