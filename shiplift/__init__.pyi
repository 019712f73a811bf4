"""The types of what the package has besides its rooms, which `__init__.py` imports when it is first used."""

from shiplift.pipelines.api.magic import load_ipython_extension as load_ipython_extension
from shiplift.pipelines.api.predicting import predict as predict
from shiplift.pipelines.api.releases import release as release
from shiplift.pipelines.api.releases import releases as releases
from shiplift.pipelines.api.releases import status as status
from shiplift.pipelines.discovery import discover as discover
from shiplift.pipelines.discovery import tracking_uri as tracking_uri
from shiplift.runtime.base import errors as errors
