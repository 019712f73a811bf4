"""What production captured of a model, as the recorded requests of its next version."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from shiplift.runtime.base.errors import DataInvalid, SpecInvalid
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.text import printable
from shiplift.runtime.capture.root import root_of
from shiplift.runtime.confinement.policy import PARSE, Entry, SandboxLimits
from shiplift.runtime.confinement.workplace import workplace
from shiplift.runtime.host.outputs import require_regular
from shiplift.runtime.records.model import RecordedRequests
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.spec.capturing import listed_as
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.measurement import CAPTURED
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.broker import broker_client

if TYPE_CHECKING:
    from shiplift.runtime.capture.folder import CaptureFolder

_WRITE = Entry("shiplift.runtime.drift.requests:write_captured", PARSE)
_FILE = "captured.npz"
_LIMITS = SandboxLimits(memory_mb=4096, timeout_s=300, task="reading the captured requests", settings="")
_ELSE = "Leave `load.requests` out, or name a file that was logged with the run."


def captured_requests(
    site: Site, model: str, spec: ReleaseSpec, signature: Signature, store: ArtifactStore
) -> RecordedRequests:
    """Captured rows, stored as an NPZ of arrays by input: the load test sends them, and the proof asks them.

    Raises:
        SpecInvalid: the cluster keeps nothing, a column was hashed or left out, or the model keeps states.
        DataInvalid: nothing was captured, or too few rows are requests that this version takes.
        SandboxLimit: reading them takes too much memory or time.
    """
    _check(site, spec)
    with _kept(site, model) as folder:
        return _requests(site, model, signature, store, folder)


@contextmanager
def _kept(site: Site, model: str) -> "Iterator[CaptureFolder]":
    """The captured rows of a model: this machine's own, or copies of those that the cluster keeps."""
    from shiplift.runtime.capture.elsewhere import RowsElsewhere  # noqa: PLC0415 - PyArrow: 0.1 s and 60 MB
    from shiplift.runtime.capture.folder import CaptureFolder  # noqa: PLC0415

    if isinstance(site.place, Cluster):
        with broker_client(site.registry_uri) as client, RowsElsewhere(client, "").copied(model) as folder:
            yield folder
    else:
        yield CaptureFolder(root_of(Path(site.home)) / serving_name(model))


def _requests(
    site: Site, model: str, signature: Signature, store: ArtifactStore, folder: "CaptureFolder"
) -> RecordedRequests:
    if (capturing := folder.settings()) is None:
        raise DataInvalid(
            f"`load.requests` is {CAPTURED}, but nothing of {model!r} was captured",
            do=f"Release a version with `capture: {{share: 0.1}}` first, and send requests. {_ELSE}",
        )
    for tensor in signature.inputs:
        for how, listed in (("kept as a hash", capturing.hash), ("not kept", capturing.omit)):
            if listed_as(f"input/{tensor.name}", listed):
                raise SpecInvalid(
                    printable(f"`load.requests` is {CAPTURED}, but input {tensor.name!r} is {how}: no request has it"),
                    do=_ELSE,
                )
    with workplace(_WRITE, Path(site.home), site.sandbox) as place:
        window = place.folder / "window"
        window.mkdir()
        order = {"signature": signature.model_dump(mode="json"), "files": folder.link_into(window)}
        place.sandbox.run(order, _LIMITS)
        require_regular(place.sandbox.work, _FILE)
        return RecordedRequests(file=store.put_file(place.sandbox.work / _FILE), name=_FILE)


def _check(site: Site, spec: ReleaseSpec) -> None:
    if isinstance(site.place, Cluster) and not site.place.capture_uri:
        raise SpecInvalid(
            f"`load.requests` is {CAPTURED}, but nothing on this cluster keeps what is captured",
            do=f"Set `capture: {{}}` in the values and run `shiplift install`. {_ELSE}",
        )
    if spec.serving.sequence_batching:
        raise SpecInvalid(
            f"`load.requests` is {CAPTURED}, but a captured request does not say to which sequence it belongs", do=_ELSE
        )
