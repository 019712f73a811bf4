"""Which package scores a dataset: that of a promoted version, or one that a release built, if the order allows it."""

from shiplift.runtime.base.errors import NotAdmitted, NotFound
from shiplift.runtime.composition.checked import Unusable
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.offline import OfflineOrder
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.champion import promoted
from shiplift.runtime.serving.production import production
from shiplift.runtime.spec.pipeline import PipelineMember
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.history import History
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.members import Promoted
from shiplift.runtime.store.published import PublishedRelease
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.rest import PATIENT_S, RestRegistry
from shiplift.runtime.store.registry.terms import CHAMPION, VersionInfo

GIVERS = {"deployment": "deploy", "tuned": "tune", "packages": "package"}  # as the definition of a release has them


def package_of(site: Site, order: OfflineOrder) -> Package:
    """The package that an order names; its record is genuine, and its files are stored.

    Raises:
        NotFound: there is no such version, or nothing is promoted.
        NotAdmitted: the version was not promoted, or was retired, and the order does not allow that.
        Temporary: the registry or production does not respond.
    """
    registry, place = Registry(site.registry_uri), production(site)
    rest = RestRegistry(site.registry_uri, timeout_s=PATIENT_S)
    find = Promoted(
        registry=rest,
        champion=place.serving,
        promotion=lambda info: promoted(site, info.name, info.version, registry),
        store=ArtifactStore(site.artifacts_uri),
    )
    wanted = PipelineMember(
        model=order.model, version=order.version or None, alias=order.alias or CHAMPION, follow="pinned"
    )
    found = find.find(wanted)
    if isinstance(found, Package):
        return found
    version = order.version or (rest.aliases(order.model).get(order.alias, 0) if order.alias else 0)
    info = rest.version(order.model, version) if version else None
    if info is None:
        raise NotFound(found.what, do=found.do)
    return _candidate(site, registry, info) if order.candidate else _refuse(found, info)


def _refuse(found: Unusable, info: VersionInfo) -> Package:
    name = f"{info.name}/{info.version}"
    raise NotAdmitted(
        f"only promoted versions score datasets, and {found.what}",
        do=f"{found.do} `--candidate` scores with what the newest release of {name} built.",
    )


def _candidate(site: Site, registry: Registry, info: VersionInfo) -> Package:
    report = PublishedRelease(registry, info).report()
    ledger = Ledger(site, Request(model=info.name, version=info.version), registry=registry)
    package = History(ledger, report.stages, GIVERS).package
    if package is None or not ArtifactStore(site.artifacts_uri).holds(package.repository):
        name = f"{info.name}/{info.version}"
        raise NotFound(f"the release of {name} left no package", do=f"Run `shiplift rerun {name}`.")
    return package
