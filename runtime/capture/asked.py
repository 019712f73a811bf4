"""What people ask of a model's captured rows, wherever they are kept. It doesn't load PyArrow by itself."""

from typing import TYPE_CHECKING

from shiplift.runtime.base.errors import NotFound, UsageError
from shiplift.runtime.records.capturing import Captured, Capturing, DeletedRows

if TYPE_CHECKING:
    from shiplift.runtime.capture.folder import CaptureFolder


def summary(folder: "CaptureFolder", model: str, capturing: Capturing | None) -> Captured:
    """What is kept of a model; `capturing` is what its spec says now.

    Raises:
        NotFound: nothing of it is captured, and nothing is kept.
    """
    if capturing is None and folder.settings() is None:
        raise nothing_kept(model)
    return folder.summary(model, capturing)


def delete(folder: "CaptureFolder", model: str, value: str, secret: str) -> DeletedRows:
    """Deletes the rows of a person; `secret` is the key of hashes.

    Raises:
        NotFound: nothing is kept.
        UsageError: the model's spec names no key.
        StorageFull: no space is left; no row was deleted.
    """
    settings = folder.settings()
    if settings is None:
        raise nothing_kept(model)
    if not settings.key:
        raise UsageError(
            f"the spec of {model!r} names no `capture.key`, by which rows could be found",
            do="Name the input that says whose row it is, and release again; rows that are kept go with `retention`.",
        )
    return DeletedRows(model=model, deleted=folder.delete(settings.key, value, secret))


def nothing_kept(model: str) -> NotFound:
    """The error if no rows of a model are kept."""
    return NotFound(
        f"no rows of {model!r} are kept", do="Set `capture: {share: 0.1}` in its spec, release it, and send requests."
    )
