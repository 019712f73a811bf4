"""The shadow: a challenger that passed every other check answers real requests, and clients get none of its answers.

It takes as long as the spec says. Killed at any line and run again, it begins again. Nothing is copied any more a few
seconds after its process has ended, however that ended.
"""

import time

from shiplift.runtime.admission.shadows import require_harmless
from shiplift.runtime.base.durations import in_short
from shiplift.runtime.base.progress import measuring, progress
from shiplift.runtime.gates import policy as gates
from shiplift.runtime.gates.shadow import shadow_checks
from shiplift.runtime.measure.shadowing.place import shadow_place
from shiplift.runtime.records.deployment import Deployment
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import LoadReport
from shiplift.runtime.records.promotion import Champion
from shiplift.runtime.records.shadowing import Shadowed
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.serving.production import production
from shiplift.runtime.spec.groups import Shadowing
from shiplift.runtime.spec.shadowing import Shadow


def shadow(
    site: Site,
    shadowing: Shadowing,
    exported: Exported,
    deployment: Deployment,
    load_report: LoadReport,
    champion: Champion,
) -> Shadowed:
    """Copies a share of the champion's requests to the challenger, and counts how it answers them.

    Without a section `promotion.shadow`, it does nothing; nor if another check has already decided the release.

    Raises:
        SpecInvalid: the challenger runs Python, and the spec does not say that a request may be answered twice.
        PromotionConflict: another version began to serve meanwhile.
        Temporary: production does not respond.
    """
    requirements = shadowing.requirements
    if requirements is None or (wanted := requirements.shadow) is None:
        return Shadowed()
    require_harmless(deployment.package, wanted)
    evidence = gates.evidence_of(exported, deployment, load_report, champion)
    if gates.verdict(evidence, requirements).objection():
        return Shadowed(again=True)  # another check ends the release; its requests are not worth copying
    serving = production(site).serving(deployment.package.model)
    if champion.package is None or serving != champion.version:
        why = "no version serves" if not serving else f"version {serving} serves, which this one is not compared with"
        return Shadowed(why_not=f"there is nothing to shadow: {why}")
    shadowed = _shadowed(site, deployment, champion.package, wanted)
    passes = all(each.verdict is Outcome.PASS for each in shadow_checks(shadowed, wanted, requirements.slo.p99_ms))
    return shadowed.model_copy(update={"again": not passes})


def _shadowed(site: Site, deployment: Deployment, champion: Package, wanted: Shadow) -> Shadowed:
    progress(f"beginning to copy {wanted.share * 100:g} % of the requests of version {champion.version}")
    with measuring(), shadow_place(site).mirroring(deployment, champion, wanted) as mirror:
        began = time.monotonic()
        while True:
            seen, spent = mirror.look(), time.monotonic() - began
            if spent >= wanted.for_s:
                return seen
            part = f"{in_short(spent)} of {in_short(wanted.for_s)}"
            progress(f"{part}: {seen.sentence}", min(1.0, spent / wanted.for_s))
