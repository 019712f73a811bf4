"""The release spec (`shiplift.yaml`): what a team asks of a release, validated field by field.

Each section is a record of its own, because a step takes only the sections it uses: a changed SLO reruns the gate
alone. Every field has a default, so an empty spec is a valid one. The JSON schema for editors comes from here.
"""

import difflib
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any, Self, get_args

import yaml
from pydantic import ValidationError, model_validator

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.records.base import Record
from shiplift.runtime.spec.measurement import Load, SearchSpace, Slo
from shiplift.runtime.spec.model import Admission, Conversion, Data, Quality, Quantization
from shiplift.runtime.spec.rules import Policy
from shiplift.runtime.spec.serving import Rollout, Serving
from shiplift.runtime.spec.target import Target, Targets

MAX_SPEC_BYTES = 256 * 1024


class ReleaseSpec(Record):
    """The whole spec, as written in `shiplift.yaml`."""

    model: str | None = None
    targets: Targets = (Target(),)
    admission: Admission = Admission()
    export: Conversion = Conversion()
    data: Data = Data()
    quantization: Quantization = Quantization()
    quality: Quality = Quality()
    search: SearchSpace = SearchSpace()
    load: Load = Load()
    slo: Slo = Slo()
    policy: Policy = Policy()
    serving: Serving = Serving()
    rollout: Rollout = Rollout()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        lowest = self.quality.min_score
        if lowest is not None and self.data.metric != "mae" and lowest > 1:
            raise ValueError(f"quality.min_score {lowest} can't be reached: {self.data.metric} is at most 1")
        if lowest is not None and self.data.metric == "mae" and lowest < 0:
            raise ValueError(f"quality.min_score {lowest} can't be reached: mae is at least 0")
        native = [one.name for one in self.targets if isinstance(one, Target) and one.engine == "pytorch"]
        if native and not self.export.torchscript:
            raise ValueError(f"target {native[0]} has `engine: pytorch`: set `export.torchscript: true`")
        if self.serving.sequence_batching and native:
            raise ValueError(f"target {native[0]} has `engine: pytorch`, which keeps no states: leave one of both out")
        if self.serving.sequence_batching and self.rollout.replicas > 1:
            raise ValueError(
                f"rollout.replicas {self.rollout.replicas} is over 1, and a sequence's state lies in one server alone"
            )
        return self


class _Loader(yaml.SafeLoader):
    """Refuses a key given twice, of which PyYAML silently takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping, if no key is in it twice."""
        written = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        for key in {key for key in written if written.count(key) > 1}:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep=deep)


def parse(text: str) -> ReleaseSpec:
    """The spec from YAML text; an empty text is the default spec.

    Raises:
        SpecInvalid: it is not YAML, not a mapping, too large, or a field is wrong; every wrong field is named.
    """
    return validate(load_mapping(text, "the spec"))


def load_mapping(text: str, what: str) -> dict[str, Any]:
    """A mapping from YAML text; an empty text is an empty one.

    Raises:
        SpecInvalid: it is not YAML, not a mapping, or too large.
    """
    if len(text.encode()) > MAX_SPEC_BYTES:
        raise SpecInvalid(
            f"{what} has {len(text.encode())} bytes, the limit is {MAX_SPEC_BYTES}", do="Shorten it and try again."
        )
    try:
        body = yaml.load(text, _Loader)  # noqa: S506 - a safe loader, only stricter
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also: a 13th month, brackets without end
        raise SpecInvalid(f"{what} is not YAML: {' '.join(str(error).split())}", do="Mend that line.") from error
    if body is not None and not isinstance(body, dict):
        raise SpecInvalid(f"{what} is a {type(body).__name__}", do="Write sections, such as `slo:`.")
    return body or {}


def validate(body: Mapping[str, Any]) -> ReleaseSpec:
    """The spec from decoded YAML or JSON.

    Raises:
        SpecInvalid: a field is wrong; every wrong field is named by its path.
    """
    try:
        return ReleaseSpec.model_validate(body)
    except ValidationError as error:
        raise SpecInvalid(
            "; ".join(problems(error)), do="`shiplift init` writes a commented spec with every field."
        ) from error


def schema() -> dict[str, Any]:
    """The JSON schema of `shiplift.yaml`, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Shiplift release spec",
        **{key: value for key, value in ReleaseSpec.model_json_schema().items() if key != "title"},
    }


def problems(error: ValidationError, of: type[Record] | None = None) -> Iterator[str]:
    """What is wrong, one line a field, named by its path; `of` is what was being read (None: a release spec)."""
    for one in error.errors(include_url=False):
        loc = tuple(part for part in one["loc"] if part not in ("in full", "by name"))
        path = ".".join(str(part) for part in loc)
        if one["type"] == "extra_forbidden":
            yield f"{path}: there is no such field{_suggestion(loc, of or ReleaseSpec)}"
        elif one["type"] == "value_error":
            said = str(one["msg"]).removeprefix("Value error, ")
            yield f"{path}: {said}" if path else said
        else:
            said = str(one["msg"])
            yield f"{path}: {said[:1].lower()}{said[1:]}, not {_short(one['input'])}"


def _records_in(annotation: Any) -> Iterator[type[Record]]:
    """The record types that an annotation is made of, such as those of `tuple[Target, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, Record):
        yield annotation
    for inner in get_args(annotation):
        yield from _records_in(inner)


def _short(value: Any) -> str:
    try:
        shown = reprlib.repr(value)  # bounded: a few aliases in YAML can stand for gigabytes
    except ValueError:  # more digits than Python prints
        return "a number of that length"
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _suggestion(loc: tuple[int | str, ...], kind: Any) -> str:
    for part in loc[:-1]:
        field = getattr(kind, "model_fields", {}).get(part)
        kind = field.annotation if field else kind
        kind = next(_records_in(kind), kind)
    near = difflib.get_close_matches(str(loc[-1]), list(getattr(kind, "model_fields", {})), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
