"""Which versions may be members of a pipeline: promoted ones, according to the registry and their promotions."""

from collections.abc import Callable
from dataclasses import dataclass

from shiplift.runtime.base.errors import NotAdmitted, NotFound
from shiplift.runtime.composition.checked import Unusable
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.promotion import Promotion
from shiplift.runtime.records.request import same_time
from shiplift.runtime.spec.pipeline import PipelineMember
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.registry.rest import RestRegistry
from shiplift.runtime.store.registry.terms import CHAMPION, TAG, VersionInfo, check_name

_PROMOTED = "promoted"  # the outcome in the tag of a promoted version


@dataclass(frozen=True, kw_only=True)
class Promoted:
    """The promoted versions of a registry.

    `champion` says which version of a model production serves (0: none); `promotion` what a version was promoted with.
    With a `store`, a version whose package has left it is retired.
    """

    registry: RestRegistry
    champion: Callable[[str], int]
    promotion: Callable[[VersionInfo], Promotion | None]
    store: ArtifactStore | None = None

    def find(self, member: PipelineMember) -> Package | Unusable:
        """The package that a member was promoted with, or why it can't be a member.

        Raises:
            Temporary: the registry does not respond.
        """
        try:
            model = check_name(member.model)
            info = self._version(model, member)
            return info if isinstance(info, Unusable) else self._package(info)
        except (NotFound, NotAdmitted) as error:
            return Unusable(what=error.what, do=error.do)

    def _version(self, model: str, member: PipelineMember) -> VersionInfo | Unusable:
        version = member.version or self._named(model, member.alias)
        if not version:
            self.registry.newest_of(model)  # NotFound: the registry does not even know the model
            return Unusable(what=f"{model!r} has no {member.alias}", do=_RELEASE.format(model))
        info = self.registry.version(model, version)
        if info is None:
            return Unusable(
                what=f"the registry has no version {version} of {model!r}: it was never registered, or deleted",
                do=f"See `shiplift status {model}`.",
            )
        return info

    def _named(self, model: str, alias: str) -> int:
        served = self.champion(model) if alias == CHAMPION else 0
        return served or self.registry.aliases(model).get(alias, 0)

    def _package(self, info: VersionInfo) -> Package | Unusable:
        """What a version was promoted with. One that production serves counts, however a later run of it ended."""
        subject = f"version {info.version} of {info.name!r}"
        outcome, reason = info.tags.get(f"{TAG}outcome", ""), info.tags.get(f"{TAG}reason", "")
        if self.champion(info.name) != info.version and outcome != _PROMOTED:
            why = f"is {outcome}{f': {reason}' if reason else ''}" if outcome else "was never released"
            return Unusable(what=f"{subject} {why}", do="Name a promoted version, or follow the champion.")
        promotion = self.promotion(info)
        if promotion is None or not same_time(promotion.registered_at, info.created_at):
            return Unusable(
                what=f"the registry has no genuine record of the promotion of {subject}", do=_RELEASE.format(info.name)
            )
        if promotion.unfinished:
            return Unusable(what=f"the {promotion.unfinished} of {subject} has not ended", do="Wait for it.")
        if not self._holds(promotion.package):
            return Unusable(
                what=f"{subject} was retired: its package is no longer in the artifact store",
                do=f"Run `shiplift rerun {info.name}/{info.version}`, or name a newer version.",
            )
        return promotion.package

    def _holds(self, package: Package) -> bool:
        return self.store is None or self.store.holds(package.repository)


_RELEASE = "Release a version of it: `shiplift release {}`."
