"""Promotion: traffic first, then the registry's aliases. Killed at any line and run again, it converges.

In order: start the new version next to the old one and verify it; move the traffic to it; move the aliases `previous`
and then `champion`; remove the old version's files. A rerun skips what is already done.
"""

from shiplift.runtime.base.errors import PromotionConflict
from shiplift.runtime.base.progress import progress
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.serving import Champion, Deployment, Promotion
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Verdict
from shiplift.runtime.serving.production import production
from shiplift.runtime.spec.serving import Rollout
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry import CHALLENGER, CHAMPION, PREVIOUS, Registry


def promote(
    site: Site, request: Request, trigger: Trigger, verdict: Verdict, deployment: Deployment, champion: Champion,
    rollout: Rollout,
) -> Promotion:  # fmt: skip
    """Makes a model version that passed the gate the champion.

    Raises:
        PromotionConflict: another version was promoted since the comparison, or a newer version is the champion.
        GoldenMismatch, ServerFailed, CanaryFailed: production can't serve it; the previous version still serves.
        Temporary: the registry or production does not answer.
    """
    verdict.require_pass()
    registry, place = Registry(site.registry_uri), production(site)
    package = deployment.package
    with place.lock(request.model):
        before = registry.alias(request.model, CHAMPION)
        _check_order(before, request, trigger, champion)
        if not place.serves(package):
            place.move(package, rollout)
        progress("moving the aliases")
        previous = before if before != request.version else registry.alias(request.model, PREVIOUS)
        promotion = Promotion(
            model=request.model,
            version=request.version,
            alias=CHAMPION,
            endpoint=place.endpoint(request.model),
            previous=previous,
            package=package,
            replicas=rollout.replicas,
        )
        Ledger(site, request, registry=registry).put_promotion(promotion)
        if before != request.version:
            registry.move_alias(request.model, PREVIOUS, before)
            registry.move_alias(request.model, CHAMPION, request.version, expected=before)
        registry.move_alias(request.model, CHALLENGER, 0)
        place.retire(request.model)
    return promotion


def _check_order(before: int, request: Request, trigger: Trigger, champion: Champion) -> None:
    if before > request.version and not trigger.allow_older:
        raise PromotionConflict(
            f"version {before} is the champion and newer than version {request.version}",
            do=f"Use `shiplift release {request.model}/{request.version} --allow-older`, or `shiplift rollback`.",
        )
    if before not in (0, champion.version, request.version):
        raise PromotionConflict(
            f"version {before} became the champion while version {request.version} was compared with "
            f"{f'version {champion.version}' if champion.version else 'none'}",
            do=f"Run `shiplift rerun {request.model}/{request.version}`: it compares again and reuses other results.",
        )
