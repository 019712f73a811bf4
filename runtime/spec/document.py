"""The release spec (`shiplift.yaml`): what a team asks of a release, validated field by field.

Each section is a record of its own, because a step takes only the sections that it uses: a changed SLO reruns only the
gate. Every field has a default, so an empty spec is valid. The JSON schema for editors is generated from these records.
"""

import difflib
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any, Self, get_args

from pydantic import ValidationError, model_validator

from shiplift.runtime.base import strict_yaml
from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.precision import SCALES
from shiplift.runtime.spec.capturing import Capture, listed_as
from shiplift.runtime.spec.drifting import Drift
from shiplift.runtime.spec.fields import Section
from shiplift.runtime.spec.measurement import Load, SearchSpace, Slo
from shiplift.runtime.spec.model import Admission, Conversion, Data, OwnMetric, Quality, Quantization
from shiplift.runtime.spec.promoting import Promoting
from shiplift.runtime.spec.rules import Policy
from shiplift.runtime.spec.serving_settings import Rollout, Serving
from shiplift.runtime.spec.target import Target, Targets

MAX_SPEC_BYTES = 256 * 1024


class ReleaseSpec(Section):
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
    promotion: Promoting = Promoting()
    capture: Capture = Capture()
    drift: Drift | None = None

    @model_validator(mode="after")
    def _scores(self) -> Self:
        metric = self.data.metric
        if isinstance(metric, OwnMetric):
            if self.admission.python != "sandbox":
                raise ValueError(f"data.metric {metric} is Python code: set `admission.python: sandbox` to run it")
            return self  # its score may have any value
        lowest, scale = self.quality.min_score, SCALES[metric]
        if lowest is not None and scale.better > 0 and lowest > scale.highest:
            raise ValueError(f"quality.min_score {lowest} can't be reached: {metric} is at most {scale.highest:g}")
        if lowest is not None and scale.better < 0 and lowest < scale.lowest:
            raise ValueError(f"quality.min_score {lowest} can't be reached: {metric} is at least {scale.lowest:g}")
        return self

    @model_validator(mode="after")
    def _falls_back(self) -> Self:
        if self.export.fallback == "python" and self.admission.python != "sandbox":
            raise ValueError(
                "export.fallback is python, which runs the model's own code: allow it with `admission.python: sandbox`"
            )
        return self

    @model_validator(mode="after")
    def _bakes(self) -> Self:
        if self.promotion.bake and (problem := self.promotion.bake.problem(self.slo.p99_ms)):
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _drifts(self) -> Self:
        bake = self.promotion.bake
        if self.drift is None:
            if bake and any(alarm.kind == "drift" for alarm in bake.alarms or ()):
                raise ValueError("promotion.bake has alarm drift: say what is compared in a section `drift`")
            return self
        if not self.capture.share:
            raise ValueError("drift is measured on captured requests: set `capture.share` to more than 0")
        kept_as = (("hash", self.capture.hash, "kept as a hash"), ("omit", self.capture.omit, "not kept"))
        for name in self.drift.columns:
            for field, listed, how in kept_as:
                if listed_as(name, listed):
                    raise ValueError(
                        f"drift.columns names {name!r}, which is {how}: take it out of `capture.{field}`, or out of "
                        "`drift.columns`"
                    )
        return self

    @model_validator(mode="after")
    def _serves(self) -> Self:
        native = [t.name for t in self.targets if isinstance(t, Target) and t.engine == "pytorch"]
        if native and not self.export.torchscript:
            raise ValueError(f"target {native[0]} has `engine: pytorch`: set `export.torchscript: true`")
        if self.serving.sequence_batching and native:
            raise ValueError(
                f"target {native[0]} has `engine: pytorch`, which keeps no states: leave out one of the two"
            )
        if self.serving.sequence_batching and self.rollout.replicas > 1:
            raise ValueError(
                f"rollout.replicas is {self.rollout.replicas}, the limit is 1: a sequence's state is on one server"
            )
        if self.serving.keeps_versions and len(self.targets) > 1:
            raise ValueError(
                f"serving.version_policy keeps earlier versions, but the spec has {len(self.targets)} targets, the "
                "limit is 1: they are taken from the champion's package, which is for one"
            )
        return self

    @model_validator(mode="after")
    def _batches_fit(self) -> Self:
        preferred, largest = max(self.serving.preferred_batch_size, default=1), max(self.search.max_batch)
        if preferred > largest:
            raise ValueError(
                f"serving.preferred_batch_size {preferred} exceeds the largest search.max_batch, {largest}"
            )
        if self.load.batch > min(self.search.max_batch):
            raise ValueError(
                f"load.batch is {self.load.batch}: leave smaller sizes out of search.max_batch, which has "
                f"{min(self.search.max_batch)}"
            )
        if self.serving.sequence_batching and self.load.batch > 1:
            raise ValueError(f"load.batch is {self.load.batch}, the limit is 1: requests of a sequence have one sample")
        return self


def parse(text: str) -> ReleaseSpec:
    """The spec from YAML text; empty text is the default spec.

    Raises:
        SpecInvalid: the text is not YAML, not a mapping, too large, or has wrong fields, each of which is named.
    """
    return validate(load_mapping(text, "the spec"))


def load_mapping(text: str, document: str, *, by_owner: bool = False) -> dict[str, Any]:
    """The mapping in a YAML document; empty text is an empty mapping. `document` names it in errors.

    A document by the site's owner may have aliases and merges.

    Raises:
        SpecInvalid: it is not YAML, not a mapping, too large, or, unless it is the owner's, has aliases, merges, tags
            or deep nesting.
    """
    try:
        body = strict_yaml.load(text, MAX_SPEC_BYTES, by_owner=by_owner)
    except strict_yaml.NotStrict as error:
        raise SpecInvalid(f"{document} {error}", do="Fix that line, and try again.") from error
    if body is not None and not isinstance(body, dict):
        raise SpecInvalid(f"{document} is a {type(body).__name__}, not a mapping", do="Write sections, such as `slo:`.")
    return body or {}


def validate(body: Mapping[str, Any]) -> ReleaseSpec:
    """The spec from decoded YAML or JSON.

    Raises:
        SpecInvalid: fields are wrong; each is named by its path.
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


def problems(error: ValidationError, record: type[Record] | None = None) -> Iterator[str]:
    """One line per wrong field, with its path; `record` is the type being read (default: the release spec)."""
    details = error.errors(include_url=False)
    for detail in details:
        if detail["type"] == "too_short" and any(_within(other["loc"], detail["loc"]) for other in details):
            continue  # too few are left only because of those that are wrong
        loc = tuple(part for part in detail["loc"] if part not in ("in full", "by name"))
        path = ".".join(str(part) for part in loc)
        if detail["type"] == "extra_forbidden":
            yield f"{path}: there is no such field{_suggestion(loc, record or ReleaseSpec)}"
        elif detail["type"] == "value_error":
            message = str(detail["msg"]).removeprefix("Value error, ")
            yield f"{path}: {message}" if path else message
        else:
            message = str(detail["msg"])
            yield f"{path}: {message[:1].lower()}{message[1:]}, not {_short(detail['input'])}"


def _within(loc: tuple[int | str, ...], outer: tuple[int | str, ...]) -> bool:
    return len(loc) > len(outer) and loc[: len(outer)] == outer


def _records_in(annotation: Any) -> Iterator[type[Record]]:
    """The record types within an annotation such as `tuple[Target, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, Record):
        yield annotation
    for inner in get_args(annotation):
        yield from _records_in(inner)


def _short(value: Any) -> str:
    try:
        text = reprlib.repr(value)  # bounded: a few YAML aliases can expand to gigabytes
    except ValueError:  # more digits than Python converts to text
        return "a number of that length"
    return text if len(text) <= 60 else text[:57] + "..."


def _suggestion(loc: tuple[int | str, ...], record: Any) -> str:
    """What was meant: a similar field there, a field of that name elsewhere, or else what there is."""
    kind, name = record, str(loc[-1])
    for part in loc[:-1]:
        field = getattr(kind, "model_fields", {}).get(part)
        kind = field.annotation if field else kind
        kind = next(_records_in(kind), kind)
    fields = list(getattr(kind, "model_fields", {}))
    if matches := difflib.get_close_matches(name, fields, n=1):
        return f"; did you mean {matches[0]!r}?"
    elsewhere = [
        f"`{section}.{name}`"
        for section, field in getattr(record, "model_fields", {}).items()
        if any(name in inner.model_fields for inner in _records_in(field.annotation))
    ]
    if elsewhere:
        return f"; did you mean {' or '.join(elsewhere)}?"
    return f"; there are {', '.join(fields)}" if fields else ""
