"""A model of a Triton repository as a registered version: what such a version's files say.

A version has the folders of a model and of all that it calls, as they were, and example requests. Nothing is run here.
"""

from pathlib import Path

from shiplift.runtime.admission.pipelines import EXAMPLE_FILE, logged_requests
from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.model.contracts import LoggedModel, has_flavor, metadata
from shiplift.runtime.records.adopted import FoundModel
from shiplift.runtime.records.model import ADOPTED

REPOSITORY = "repository"  # the folder of the models, in the version's files
_DO = "Adopt it again: `shiplift adopt DIR --model NAME --example requests.npz`, with arrays by input name."


def is_adopted(folder: Path) -> bool:
    """Whether the model that was logged in a folder was adopted.

    Raises:
        NotAdmitted: its `MLmodel` file is missing, or can't be read.
    """
    return has_flavor(folder, ADOPTED)


def adopted_model(folder: Path) -> tuple[FoundModel, int, dict[str, FoundModel]]:
    """The adopted model in a version's files, its version in the repository, and every model there by name.

    Raises:
        NotAdmitted: it has mistakes, or the bundled server can't serve it.
    """
    from shiplift.runtime.admission.adopting.repository import read_repository  # noqa: PLC0415 - imports Triton's client

    named = metadata(folder)["flavors"][ADOPTED]
    name, version = (str(named.get("model")), named.get("version")) if isinstance(named, dict) else ("", 0)
    found = read_repository(folder / REPOSITORY, lambda _: None)
    if found.mistakes:
        raise NotAdmitted("\n".join(map(str, found.mistakes)), do=_DO)
    models = {each.name: each for each in found.models}
    if name not in models or not isinstance(version, int) or version not in models[name].versions:
        raise NotAdmitted(f"the version's repository serves no version {version} of {name!r}", do=_DO)
    if why := models[name].left_out:
        raise NotAdmitted(f"{name} can't be served as it is: {why}", do="Release the model itself.")
    return models[name], version, models


def read_adopted(folder: Path) -> tuple[LoggedModel, tuple[str, ...]]:
    """The contract of the adopted model in `folder`, and the paths of its authors' code. Runs in the sandbox.

    Raises:
        NotAdmitted: as `adopted_model`, or it has no usable example.
    """
    model, _, models = adopted_model(folder)
    example = logged_requests(folder / EXAMPLE_FILE, model.signature.inputs, _DO)
    code = tuple(f"{REPOSITORY}/{file}" for each in models.values() for file in each.code)
    return LoggedModel(flavor=ADOPTED, signature=model.signature, example=example), code
