"""Promotion: traffic first, then the registry's aliases. Killed at any line and run again, it converges.

In order: check that the registry still has the version that was judged; store a signed record of the promotion; start
the new version next to the old one and verify it; move the traffic to it; check the registry's version again; begin the
bake; commit; move the aliases `previous` and then `champion`; store that the promotion is finished; remove the old
version's files. A rerun skips what is done. Aliases that were moved by hand are first moved back: `previous` is the
version that production served. Until the commit, a person can abort: then all traffic goes back to what served before.
"""

from shiplift.runtime.base.errors import Aborted, PromotionConflict
from shiplift.runtime.base.progress import progress
from shiplift.runtime.gates.hold import approval_asked, require_approval
from shiplift.runtime.records.deployment import Deployment
from shiplift.runtime.records.model import ModelVersion
from shiplift.runtime.records.promotion import Beside, Champion, Promotion
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Verdict
from shiplift.runtime.serving.baking import begin_bake
from shiplift.runtime.serving.capturing import with_capture
from shiplift.runtime.serving.champion import champion_state, move_traffic, point, point_at_judged, restore_aliases
from shiplift.runtime.serving.drifting import with_drift
from shiplift.runtime.serving.give_back import give_back
from shiplift.runtime.serving.packaging.earlier_versions import require_as_promoted
from shiplift.runtime.serving.production import production
from shiplift.runtime.serving.retired import require_not_retired
from shiplift.runtime.serving.scaling.capacity import capacity_if_measured
from shiplift.runtime.spec.groups import Delivery
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.lease import RegistryLease
from shiplift.runtime.store.registry.rest import PATIENT_S, RestRegistry
from shiplift.runtime.store.registry.terms import CHALLENGER, CHAMPION, PREVIOUS
from shiplift.runtime.store.same_version import require_unchanged


def promote(
    site: Site,
    request: Request,
    trigger: Trigger,
    model_version: ModelVersion,
    verdict: Verdict,
    deployment: Deployment,
    champion: Champion,
    delivery: Delivery,
) -> Promotion:
    """Makes a model version that passed the gate the champion.

    Raises:
        RegistryHeld: another installation of Shiplift releases from this registry.
        VersionReplaced: the version was deleted and another one has its number, or its files were overwritten.
        AwaitingApproval, Rejected: the spec asks for a person's approval, and nobody has approved this yet.
        Aborted: a person ended the promotion; what served before has all the traffic again.
        PromotionConflict: another version was promoted since the comparison, a newer version is the champion, or the
            model was retired since.
        ArtifactCorrupt: the package has earlier versions that differ from what was promoted.
        GoldenMismatch, ServerFailed, CanaryFailed: production can't serve it; the previous version still serves.
        Temporary: the registry or production does not answer.
    """
    verdict.require_pass()
    progress("looking at what serves")
    registry, place = Registry(site.registry_uri), production(site)
    RegistryLease(RestRegistry(site.registry_uri, timeout_s=PATIENT_S), site.holder, "").check()
    package = with_drift(with_capture(deployment.package, delivery.capture), delivery, site.policy)
    ledger, rollout = Ledger(site, request, registry=registry), delivery.rollout
    if delivery.promoting.approval == "required":
        asked = approval_asked(request, model_version, package, champion, delivery.promoting)
        require_approval(site, request, trigger, ledger, asked)
    before = tuple(each for each in (champion.package, champion.own) if each)
    require_as_promoted(ArtifactStore(site.artifacts_uri), package, before)
    with place.lock(request.model):
        require_unchanged(site, ledger.info, model_version, registry)  # only what the registry has may serve
        now = champion_state(site, request.model, registry, place)
        restore_aliases(site, now, registry, place)
        require_not_retired(site, registry, request, champion)
        _check_order(now.champion, request, trigger, champion)
        promotion = Promotion(
            model=request.model,
            version=request.version,
            registered_at=model_version.registered_at,
            digest=model_version.digest,
            alias=CHAMPION,
            endpoint=place.endpoint(request.model),
            previous=now.champion if now.champion != request.version else now.previous,
            package=package,
            replicas=rollout.replicas,
            capacity=capacity_if_measured(verdict.evidence.load_report if verdict.evidence else None),
            others=_others(deployment, verdict, delivery),
        )
        try:
            if not place.serves(package, promotion.others):
                begun = promotion.model_copy(update={"unfinished": "promotion"})
                move_traffic(place, ledger, begun, rollout, trigger.requested_at)
                info = registry.version(request.model, request.version)
                require_unchanged(site, info, model_version, registry)  # again, since a rollout takes minutes
            begin_bake(site, registry, place, promotion, trigger, delivery)  # what served stays ready after the commit
            place.commit(request.model)
        except Aborted:
            give_back(site, place, ledger, promotion, champion)
            raise
        progress("moving the aliases")
        point_at_judged(site, registry, request.model, PREVIOUS, promotion.previous)
        point(registry, request.model, CHAMPION, request.version)
        point(registry, request.model, CHALLENGER, 0)
        ledger.put_promotion(promotion)
        progress("removing what only the move needed")
        place.retire(request.model)
    return promotion


def _others(deployment: Deployment, verdict: Verdict, delivery: Delivery) -> tuple[Beside, ...]:
    """The packages of the targets that serve after the first, without those that the gates left out."""
    evidence = verdict.evidence
    reports = evidence.load_report.others if evidence and evidence.load_report else ()
    by_target = {report.target: report for report in reports}
    packages = (other.package for other in deployment.others if other.package.target not in verdict.left_out)
    return tuple(
        Beside(
            package=with_capture(package, delivery.capture),
            capacity=capacity_if_measured(by_target.get(package.target)),
        )
        for package in packages
    )


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
