"""`pipelines/step_use.py`, as it is called in bundles."""

from shiplift.runtime.guest.pipelines.step_use import beyond as beyond
from shiplift.runtime.guest.pipelines.step_use import children as children
from shiplift.runtime.guest.pipelines.step_use import use_of as use_of
