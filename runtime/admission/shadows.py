"""Whether a model can be tried on copies of real requests, and whether its author said that it may."""

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.base.text import printable
from shiplift.runtime.records.kinds.contract import Contract
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.shadowing import Shadow

_WITHOUT_EFFECTS = ("graph", "text", "image")
_TOLD = "Leave `promotion.shadow` out, or say with `stateful: true` that a request may be answered twice."


def check_shadow(site: Site, spec: ReleaseSpec, contract: Contract) -> None:
    """Checks the section `promotion.shadow`.

    Raises:
        SpecInvalid: the model may have states or side effects, and the section does not say that this is right; its
            requests or answers can't be copied here; or the section names an output that the model lacks.
    """
    shadow, cluster = spec.promotion.shadow, isinstance(site.place, Cluster)
    if shadow is None:
        return
    if contract.kind not in _WITHOUT_EFFECTS and not shadow.stateful:
        why = f"a version of kind {contract.kind} may do more than answer, and a shadow answers requests twice"
        raise _refused(why, do=_TOLD)
    if spec.serving.sequence_batching:
        _check_states(shadow, cluster=cluster)
    if contract.signature.streamed and not cluster:
        raise _refused("answers that are streamed are not copied on one machine")
    if cluster and shadow.agreement_percent is not None:
        why = "it has `agreement_percent`, and a gateway drops the answers to copied requests"
        raise _refused(why, do="Leave that out: on a cluster, a shadow is judged by its errors and its latency.")
    if cluster and site.place.gateway is None:  # type: ignore[union-attr]
        raise _refused("only a Gateway copies requests, and this cluster has none (`shiplift install` with `gateway`)")
    known = [each.name for each in contract.signature.outputs]
    if unknown := [name for name in shadow.named if name not in known]:
        raise SpecInvalid(
            printable(f"promotion.shadow.agreement_percent names {unknown[0]!r}; the model has {', '.join(known)}"),
            do="Correct the name of the output.",
        )


def require_harmless(package: Package, shadow: Shadow) -> None:
    """Checks the package that a release made, which may run the author's library where no right graph was found.

    Raises:
        SpecInvalid: it runs Python, and the section does not say that a request may be answered twice.
    """
    if package.python_environment is not None and not shadow.stateful:
        raise _refused("this version is served by Python code, which may do more than answer", do=_TOLD)


def _check_states(shadow: Shadow, *, cluster: bool) -> None:
    """A sequence needs all of its requests, with what tells it from others."""
    if not shadow.stateful:
        raise _refused("the model keeps states (`serving.sequence_batching`)", do=_TOLD)
    if not cluster:
        raise _refused("on one machine, copies of requests don't say to which sequence they belong")
    if shadow.share < 1:
        why = f"its share is {shadow.share:g}, and a model that keeps states needs every request of a sequence"
        raise _refused(why, do="Set `share: 1`.")


def _refused(why: str, do: str = "Leave it out.") -> SpecInvalid:
    return SpecInvalid(f"`promotion.shadow` is set, but {why}", do=do)
