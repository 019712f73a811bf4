"""The site's catalogue of targets: a YAML file in its home, or on a cluster a mounted ConfigMap."""

from pathlib import Path

import yaml
from pydantic import ValidationError

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.spec.document import load_mapping, problems
from shiplift.runtime.spec.target import Fleet, Target

FILE = "targets.yaml"


def catalogue(home: Path) -> dict[str, Target]:
    """The site's targets by name, always including the default target.

    Raises:
        SpecInvalid: the catalogue can't be read; each wrong field is named.
    """
    file = home / FILE
    return parse(file.read_text() if file.is_file() else "")


def parse(text: str) -> dict[str, Target]:
    """The same, from a catalogue's text.

    Raises:
        SpecInvalid: the text can't be read; every wrong field is named.
    """
    entries = load_mapping(text, f"the catalogue {FILE}") if text else {}
    try:
        listed = Fleet.model_validate(entries).targets
    except ValidationError as error:
        raise SpecInvalid(f"{FILE}: {'; '.join(problems(error))}", do="Fix that field.") from error
    default = Target()
    return {default.name: default} | {target.name: target for target in listed}


def save(home: Path, *targets: Target) -> Path:
    """Adds targets to the catalogue, replacing those of the same name."""
    listed = catalogue(home) | {target.name: target for target in targets}
    body = {
        "targets": [target.model_dump(mode="json", exclude_defaults=True) | {"name": n} for n, target in listed.items()]
    }
    write_atomically(home / FILE, yaml.safe_dump(body, sort_keys=False))
    return home / FILE
