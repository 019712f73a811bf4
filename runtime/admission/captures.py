"""Whether what a spec wants to capture, and to compare of it, is there, and whether the site can capture it."""

from collections.abc import Sequence

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.base.text import printable
from shiplift.runtime.records.model import Datasets
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.target import Target

_SHOWN = 20
_KEPT = "Correct the name: a column that is not found would be kept as it is."


def check_capture(site: Site, spec: ReleaseSpec, signature: Signature, targets: Sequence[Target] = ()) -> None:
    """Checks the section `capture`. A column that is not the model's would be kept in the clear by a typing error.

    `targets` are those that the version is released for, as far as they are known.

    Raises:
        SpecInvalid: it names a column that the model lacks, answers are streamed, the cluster keeps nothing, or the
            server of a target can't capture.
    """
    capture = spec.capture
    if not capture.share:
        return
    if isinstance(site.place, Cluster) and not site.place.capture_uri:
        raise SpecInvalid(
            "`capture` is set, but nothing on this cluster keeps what is captured",
            do="Set `capture: {}` in the values and run `shiplift install`, or leave `capture` out of the spec.",
        )
    if unable := [each.name for each in targets if each.server == "nvidia" and "nvidia" in site.place.servers]:
        raise SpecInvalid(
            f"`capture` is set, but NVIDIA's server, which serves target {', '.join(unable)}, can't capture requests",
            do="Leave `capture` out, or release for targets with `server: bundled`.",
        )
    if signature.streamed:
        raise SpecInvalid("`capture` is set, but answers that are streamed are not captured", do="Leave it out.")
    inputs = [spec.name for spec in signature.inputs]
    known = known_columns(signature)
    for field, columns in (("hash", capture.hash), ("omit", capture.omit)):
        if unknown := [name for name in columns if name not in known]:
            raise _unknown(f"capture.{field}", unknown[0], sorted(known), do=_KEPT)
    if capture.key and capture.key.removeprefix("input/") not in inputs:
        raise _unknown("capture.key", capture.key, inputs, do=_KEPT)


def check_drift(site: Site, spec: ReleaseSpec, signature: Signature, datasets: Datasets) -> None:
    """Checks the section `drift`.

    Raises:
        SpecInvalid: it names a column that the model lacks, the version has no validation data to compare with, or the
            site is a cluster.
    """
    drift = spec.drift
    if drift is None:
        return
    if isinstance(site.place, Cluster):
        raise SpecInvalid(
            "`drift` is set, but captured requests are compared on one machine only, not on a cluster",
            do="Leave `drift` out, or release this model on one machine.",
        )
    known = known_columns(signature)
    if unknown := [name for name in drift.columns if name not in known]:
        raise _unknown("drift.columns", unknown[0], sorted(known), do="Correct the name.")
    if datasets.validation is None:
        raise SpecInvalid(
            f"`drift` is set, but the version has no validation data at {spec.data.validation} to compare with",
            do="Log them with the run, or correct `data.validation`.",
        )


def known_columns(signature: Signature) -> set[str]:
    """The inputs and outputs by name, as `age` and as `input/age`."""
    inputs, outputs = ([spec.name for spec in tensors] for tensors in (signature.inputs, signature.outputs))
    own = {f"input/{name}" for name in inputs} | {f"output/{name}" for name in outputs}
    return {*inputs, *outputs, *own}


def _unknown(field: str, name: str, known: list[str], *, do: str) -> SpecInvalid:
    shown = ", ".join([each for each in known if "/" not in each][:_SHOWN])
    return SpecInvalid(printable(f"{field} names {name!r}, which the model does not have; it has {shown}"), do=do)
