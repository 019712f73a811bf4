"""The names of a bundle's models in a server. They contain its digest, so that two bundles never share a model.

A new member is thus loaded beside those of the serving bundle, and never reloaded in place, which would unload the
ensembles that use it. No registered model has such a name: `serving_name` never contains `--`.
"""

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.composition.checked import CheckedPipeline
from shiplift.runtime.records.kinds.package import Package


def member_name(package: Package, digest: str) -> str:
    """The name of a member; two members with the same version of a model share one."""
    return f"{serving_name(package.model)}-{package.version}--{digest}"


def members_by_name(checked: CheckedPipeline) -> dict[str, Package]:
    """The bundle's packages by their names in the server."""
    return {member_name(member.package, checked.digest): member.package for member in checked.members}


def witness_name(pipeline: str, digest: str) -> str:
    """The name of the small model that says which bundle answered, because an ensemble itself can't."""
    return f"{serving_name(pipeline)}-bundle--{digest}"


def pool_name(pipeline: str, digest: str) -> str:
    """The name of the model whose instances run the author's Python."""
    return f"{serving_name(pipeline)}-python--{digest}"
