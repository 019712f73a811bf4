"""Rollback: promotes the previous champion again, from the package it was promoted with."""

from shiplift.runtime.records.promotion import Promotion
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.rolling_back import roll_back


def rollback(site: Site, model: str) -> Promotion:
    """Swaps `champion` and `previous`, so that a second rollback undoes the first.

    Both come from the signed promotions, even if the aliases were moved by hand. If an earlier rollback was killed,
    this finishes it instead.

    Raises:
        NothingToRollBack: there is no previous champion, or the record of its promotion is gone.
        VersionReplaced: the registry has other files of the previous champion than those that were judged.
        GoldenMismatch, ServerFailed, CanaryFailed: production can't serve it; the current champion keeps serving.
        Temporary: the registry or production does not respond.
    """
    return roll_back(site, model)
