"""The dependents of a model: the pipelines that have it as a member. A new champion registers its followers again.

Registering releases the pipeline. Its new version has the files of the serving one, and its release finds the new
champion as a member. If the release fails, the former bundle keeps serving.
"""

from collections.abc import Iterator

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.base.progress import progress
from shiplift.runtime.records.kinds.package import PipelinePackage
from shiplift.runtime.records.retirement import Dependent
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.champion import champion_state
from shiplift.runtime.serving.production import production
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.terms import MEMBER_TAG, VersionInfo


def release_dependents(site: Site, model: str, version: int, registry: Registry) -> tuple[VersionInfo, ...]:
    """Registers the next version of each pipeline that follows a model and serves another version of it.

    Called again for the same version, it registers nothing. An error with one pipeline is reported and does not affect
    the others.

    Raises:
        Temporary: the registry does not list its pipelines.
    """
    return tuple(_registered(site, model, version, registry))


def dependents_of(site: Site, model: str, registry: Registry) -> tuple[Dependent, ...]:
    """The pipelines in production that have a model as a member, by name.

    Raises:
        Temporary: the registry does not list its pipelines, or does not answer.
    """
    names = sorted({info.name for info in registry.pipelines()} - {model})
    return tuple(found for name in names if (found := _dependent(site, name, model, registry)))


def _dependent(site: Site, pipeline: str, model: str, registry: Registry) -> Dependent | None:
    now = champion_state(site, pipeline, registry, production(site))
    package = now.promotion.package if now.promotion and now.serves else None
    members = package.members if isinstance(package, PipelinePackage) else ()
    own = [each for each in members if each.model == model]
    if not own:
        return None
    follows = any(each.follows for each in own)
    return Dependent(pipeline=pipeline, version=now.champion, member_version=own[0].version, follows=follows)


def _registered(site: Site, model: str, version: int, registry: Registry) -> Iterator[VersionInfo]:
    newest: dict[str, VersionInfo] = {}
    for info in registry.pipelines():
        newest[info.name] = max(info, newest.get(info.name, info), key=lambda each: each.version)
    for name, info in newest.items():
        member = f"{model}/{version}"
        if name == model or info.tags.get(MEMBER_TAG) == member:
            continue
        try:
            if serving := _follows(site, name, model, version, registry):
                made = registry.register_again(registry.version(name, serving), member)
                progress(f"{name} follows {model}: registered version {made.version} of it, for {member}")
                yield made
        except ShipliftError as error:
            progress(f"{name} may follow {model}, and could not be registered again: {error.what}")


def _follows(site: Site, pipeline: str, model: str, version: int, registry: Registry) -> int:
    """The version of a pipeline that serves with another version of a model that it follows; 0 if there is none."""
    now = champion_state(site, pipeline, registry, production(site))
    package = now.promotion.package if now.promotion else None
    members = package.members if isinstance(package, PipelinePackage) else ()
    stale = any(each.model == model and each.follows and each.version != version for each in members)
    return now.champion if stale else 0
