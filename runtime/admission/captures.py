"""Whether what a spec wants to capture is there, and whether the site can capture it."""

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.base.text import printable
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.spec.document import ReleaseSpec

_SHOWN = 20


def check_capture(site: Site, spec: ReleaseSpec, signature: Signature) -> None:
    """Checks the section `capture`. A column that is not the model's would be kept in the clear by a typing error.

    Raises:
        SpecInvalid: it names a column that the model lacks, a streamed model, or a site on a cluster.
    """
    capture = spec.capture
    if not capture.share:
        return
    if isinstance(site.place, Cluster):
        raise SpecInvalid(
            "`capture` is set, but requests are captured on one machine only, not on a cluster",
            do="Leave `capture` out, or release this model on one machine.",
        )
    if signature.streamed:
        raise SpecInvalid("`capture` is set, but answers that are streamed are not captured", do="Leave it out.")
    inputs = [spec.name for spec in signature.inputs]
    known = {*inputs, *(spec.name for spec in signature.outputs)}
    known |= {f"input/{name}" for name in inputs} | {f"output/{spec.name}" for spec in signature.outputs}
    for field, columns in (("hash", capture.hash), ("omit", capture.omit)):
        if unknown := [name for name in columns if name not in known]:
            _refuse(f"capture.{field}", unknown[0], sorted(known))
    if capture.key and capture.key.removeprefix("input/") not in inputs:
        _refuse("capture.key", capture.key, inputs)


def _refuse(field: str, name: str, known: list[str]) -> None:
    shown = ", ".join([each for each in known if "/" not in each][:_SHOWN])
    raise SpecInvalid(
        printable(f"{field} names {name!r}, which the model does not have; it has {shown}"),
        do="Correct the name: a column that is not found would be kept as it is.",
    )
