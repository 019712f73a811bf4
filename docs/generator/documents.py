"""What authors write, as a reference: each section of a document by its path, with the comments of its template."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files

from docs.generator.markdown import Schema, code, fields, kind, table
from shiplift.pipelines.installation.values import Values
from shiplift.pipelines.settings import Settings
from shiplift.runtime.planning.profiles import Profiles
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.site import SitePolicy
from shiplift.runtime.spec.document import ReleaseSpec
from shiplift.runtime.spec.pipeline import PipelineSpec
from shiplift.runtime.spec.rules import METRICS

_LINE = re.compile(r"^(?P<indent> *)(?:- |# - )?(?:# )?(?P<name>[a-z_0-9]+):(?P<value>.*?)(?:  ?#\s(?P<comment>.*))?$")
_MORE = re.compile(r"^ {12,}#\s?(.*)$")


def release_spec() -> str:
    """`shiplift.yaml`, section by section."""
    return _document(ReleaseSpec, _comments("shiplift.yaml"))


def pipeline_spec() -> str:
    """`pipeline.yaml`."""
    return _document(PipelineSpec, {})


def profiles() -> str:
    """The file that `shiplift pipeline plan --profiles` reads."""
    return _document(Profiles, {})


def site_policy() -> str:
    """The section `policy` of `site.yaml`, and of the values."""
    return _document(SitePolicy, {})


def values() -> str:
    """The values of an installation on a cluster."""
    return _document(Values, _comments("kubernetes/values.yaml"))


@cache
def sections(record: type[Record]) -> tuple[tuple[str, Schema], ...]:
    """Each part of a document with its path, such as `slo.regression`; the whole comes first."""
    schema = record.model_json_schema()
    definitions, seen = schema.get("$defs", {}), set[str]()
    found: list[tuple[str, Schema]] = [("", schema)]
    for path, part in found:
        for name, field in part.get("properties", {}).items():
            for target, suffix in _references(field):
                if target not in seen and "properties" in definitions.get(target, {}):
                    seen.add(target)
                    whole = f"{path}.{name}{suffix}".lstrip(".")
                    found.append((f"{whole}{_of_kind(field, definitions[target])}", definitions[target]))
    return tuple(found)


def _of_kind(field: Schema, part: Schema) -> str:
    """What tells the heading of a part from those of others that may stand in the same place; empty if none may."""
    kind = part["properties"].get("kind", {}).get("const", "")
    return f" of kind {kind}" if kind and len({target for target, _ in _references(field)}) > 1 else ""


def _references(schema: object, suffix: str = "") -> Iterator[tuple[str, str]]:
    """The records within a field's schema, each with `[]` or `.NAME` if it is in a list or a mapping."""
    if isinstance(schema, Mapping):
        if "$ref" in schema:
            yield str(schema["$ref"]).rpartition("/")[2], suffix
        for key, inner in schema.items():
            more = {"items": "[]", "prefixItems": "[]", "additionalProperties": ".NAME"}.get(key, "")
            yield from _references(inner, suffix + more)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _references(inner, suffix)


def _document(record: type[Record], comments: Mapping[str, Mapping[str, str]]) -> str:
    definitions = record.model_json_schema().get("$defs", {})
    found = sections(record)
    links = {str(part["title"]): f"[{path}](#{_anchor(path)})" for path, part in found if path}
    return "\n".join(
        f"## {path or 'The whole document'}\n\n{part.get('description', '')}\n\n"
        f"{fields(part, definitions, comments.get(path.removesuffix('[]'), {}), links)}"
        for path, part in found
    )


def _anchor(path: str) -> str:
    return re.sub(r"[^\w-]", "", path.replace(" ", "-")).lower()


def _comments(template: str) -> Mapping[str, Mapping[str, str]]:
    """The comment on each field of a commented template, by its section (empty for the sections themselves)."""
    found: dict[str, dict[str, str]] = {}
    section, name = "", ""
    for line in files("shiplift.templates").joinpath(template).read_text().splitlines():
        entry, more = _LINE.match(line), _MORE.match(line)
        if more and name:
            found[section][name] += f" {more[1]}"
        elif entry and len(entry["indent"]) <= 4:
            section, name = _within(entry, section, name), entry["name"]
            found.setdefault(section, {}).setdefault(name, entry["comment"] or "")
        else:
            name = ""
    return found


def _within(entry: re.Match[str], section: str, name: str) -> str:
    """The section that a field is in: none, that of the field before, or the field before itself."""
    if not entry["indent"]:
        return ""
    return section or name


def environment() -> str:
    """The variables that stand for settings of the command line."""
    prefix = str(Settings.model_config["env_prefix"])
    schema = Settings.model_json_schema()
    rows = [
        [code(f"{prefix}{name}".upper()), kind(field, schema.get("$defs", {})), code(field["default"])]
        for name, field in schema["properties"].items()
    ]
    return table(["Variable", "Takes", "Default"], rows)


def rule_metrics() -> str:
    """The metrics that a rule of a policy may limit."""
    slices = {"load": "`concurrency=N`, `rate=N`", "data": "a slice of the validation data", "": ""}
    rows = [
        [
            f"`{name}`",
            metric.unit.name,
            ", ".join(filter(None, metric.unit.others)),
            metric.better,
            slices[metric.slices],
        ]
        for name, metric in METRICS.items()
    ]
    return table(["Metric", "Unit", "Also written in", "Better", "Slices"], rows)
