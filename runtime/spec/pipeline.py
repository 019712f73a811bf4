"""A pipeline of models (`pipeline.yaml`): its tensors, its members, and the steps between them.

A step runs a member, which is a registered model or a decoder of images, or a Python function by the author. Tensors
connect steps by their names: each is given once, by an input of the pipeline or an output of a step, so the order of
the steps in the file has no meaning. `runtime.composition` checks what the names mean and whether it all fits.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationError, model_validator

from shiplift.runtime.base import strict_yaml
from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.records.tensor import Datatype
from shiplift.runtime.spec.document import MAX_SPEC_BYTES, load_mapping, problems
from shiplift.runtime.spec.fields import Name, RelativePath, Section, form
from shiplift.runtime.spec.images import ImageDecoder

PIPELINE_FILE = "pipeline.yaml"  # in a registered version
BUNDLE = "bundle"  # every pipeline has this output, which names the bundle that answered
REQUEST_TIMEOUT_S = 30.0
_MAX_DIMS = 8
_MAX_STEPS = 200
TensorName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]
MemberTensor = Annotated[str, Field(min_length=1, max_length=256)]
Timeout = Annotated[float, Field(ge=0.01, le=3600)]
Dim = Annotated[int, Field(ge=-1, le=2**31 - 1)]
OnError = Literal["fail", "default", "skip"]


def _one_or_many(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


class TensorType(Section):
    """A tensor's Triton datatype and whole shape. -1 is a dynamic dimension; the first axis counts rows."""

    datatype: Datatype
    shape: tuple[Dim, ...] = Field(min_length=1, max_length=_MAX_DIMS)

    @model_validator(mode="after")
    def _sized(self) -> Self:
        if 0 in self.shape:
            raise ValueError(f"shape {list(self.shape)} has a dimension of 0: write -1 for one of any size")
        return self


class PipelineMember(Section):
    """A registered `model`, at a `version` or at an `alias`; or an `image` decoder.

    `follow: champion` means the champion at the time when the pipeline is released; a new champion releases the
    pipeline again. `follow: pinned` stays with the named version, or with the one that the alias named at that time.
    """

    model: str = Field("", max_length=256)
    image: ImageDecoder | None = None
    version: int | None = Field(None, ge=1)
    alias: str = Field("champion", pattern=r"^[A-Za-z0-9_-]{1,64}$")
    follow: Literal["champion", "pinned"] = "champion"

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if bool(self.model) == (self.image is not None):
            raise ValueError("needs a `model`, or an `image` decoder")
        if self.image is not None and self.model_fields_set - {"image"}:
            extra = min(self.model_fields_set - {"image"})
            raise ValueError(f"`{extra}` is for registered models: leave it out beside `image`")
        return self

    @property
    def follows(self) -> bool:
        """Whether a new champion of its model releases the pipeline again."""
        return self.image is None and self.follow == "champion"

    @model_validator(mode="after")
    def _one_version(self) -> Self:
        if self.version is not None and self.alias != "champion":
            raise ValueError("has a `version` and an `alias`: leave out one of the two")
        if self.follow == "champion" and self.version is not None:
            raise ValueError(
                "`follow: champion` excludes a `version`: write `follow: pinned`, or leave the version out"
            )
        if self.follow == "champion" and self.alias != "champion":
            raise ValueError(f"`follow: champion` excludes `alias: {self.alias}`: write `follow: pinned`")
        return self


class Condition(Section):
    """Runs a step only if `any` (or `all`) of a tensor's values are `below`, are `at_least`, or equal a value.

    NaN can't be compared: the step then fails, and its `on_error` decides. A tensor without rows never fulfils `any`,
    and always fulfils `all`.
    """

    tensor: TensorName
    below: float | None = None
    at_least: float | None = None
    equals: bool | float | str | None = None
    of: Literal["any", "all"] = "any"

    @model_validator(mode="after")
    def _one_comparison(self) -> Self:
        if sum(limit is not None for limit in (self.below, self.at_least, self.equals)) != 1:
            raise ValueError("needs exactly one of `below`, `at_least` and `equals`")
        return self


class ForEach(Section):
    """Runs a member for each row of the tensors `over`, in as few concurrent requests as its largest batch allows.

    More than `max` rows are an error of the step; without rows there is no request. Other inputs have one row, which is
    given to each.
    """

    over: Annotated[
        tuple[TensorName, ...],
        BeforeValidator(_one_or_many, json_schema_input_type=TensorName | tuple[TensorName, ...]),
    ] = Field(min_length=1)
    max: int = Field(ge=1, le=100_000)


class Constant(Section):
    """An output's value if the step fails: one number or text everywhere.

    Its `shape` is the output's. It must be written if that has a dynamic dimension after the first. The first dimension
    is the number of rows of the step's first input for a member, otherwise 1.
    """

    value: bool | float | str
    shape: tuple[Annotated[int, Field(ge=0, le=2**20)], ...] | None = Field(None, min_length=1, max_length=_MAX_DIMS)


Output = Annotated[Annotated[TensorType, Tag("in full")] | Annotated[TensorName, Tag("by name")], Discriminator(form)]


def _constant(value: Any) -> Any:
    return value if form(value) == "in full" else {"value": value}


ConstantOrValue = Annotated[Constant, BeforeValidator(_constant, json_schema_input_type=Constant | bool | float | str)]


class Step(Section):
    """One step: a `member`, or a `function` of a `python` file beside this one, called as `function(**tensors)`.

    `inputs` names the tensor for each of the member's inputs, or of the function's parameters. `outputs` names the
    tensors that the step gives: by the member's own names, or, in a Python step, by the keys of the returned dict, with
    their datatypes and shapes.

    A step that does not run, because of `when` or by `on_error: skip`, gives the tensors that `otherwise` names, and no
    rows of the others. With `on_error: default` a step that fails gives `defaults`.
    """

    member: str = Field("", max_length=256)
    python: RelativePath = ""
    function: str = Field("", pattern=r"^([A-Za-z_][A-Za-z0-9_]{0,62})?$")
    inputs: dict[MemberTensor, TensorName] = Field(min_length=1)
    outputs: dict[MemberTensor, Output] = Field(min_length=1)
    when: Condition | None = None
    for_each: ForEach | None = None
    on_error: OnError = "fail"
    otherwise: dict[TensorName, TensorName] = Field(default_factory=dict)
    defaults: dict[TensorName, ConstantOrValue] = Field(default_factory=dict)
    timeout_s: Timeout | None = None

    @property
    def gives(self) -> dict[str, str]:
        """The tensors that the step gives, each with its name in `outputs`."""
        return {output if isinstance(output, str) else key: key for key, output in self.outputs.items()}

    @property
    def may_not_run(self) -> bool:
        """Whether its outputs may come from elsewhere than the step."""
        return self.when is not None or self.on_error == "skip"

    @property
    def called(self) -> str:
        """The name of a Python step's function: that of its file, unless the step says otherwise."""
        return self.function or self.python.rpartition("/")[2].removesuffix(".py")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if bool(self.member) == bool(self.python):
            raise ValueError("needs a `member` or a `python` file, one of the two")
        if self.member and self.function:
            raise ValueError("`function` is for Python steps")
        by_name = [key for key, output in self.outputs.items() if isinstance(output, str)]
        if self.python and by_name:
            raise ValueError(f"output {by_name[0]!r} of a Python step needs a `datatype` and a `shape`")
        if self.member and len(by_name) < len(self.outputs):
            raise ValueError("outputs of a member have the member's types: write only a name for each")
        if self.python and not self.python.endswith(".py"):
            raise ValueError(f"`python: {self.python}` is not a `.py` file")
        if self.python and self.for_each:
            raise ValueError("`for_each` is for members: a Python function gets all rows, and can loop over them")
        return self

    @model_validator(mode="after")
    def _fallbacks_fit(self) -> Self:
        for field, tensors in (("otherwise", self.otherwise), ("defaults", self.defaults)):
            for tensor in tensors:
                if tensor not in self.gives:
                    raise ValueError(f"`{field}` has {tensor!r}, which is not a tensor in the step's `outputs`")
        if self.otherwise and not self.may_not_run:
            raise ValueError("`otherwise` is for steps with `when` or `on_error: skip`: this one always runs")
        if self.defaults and self.on_error != "default":
            raise ValueError("`defaults` are for `on_error: default`")
        missing = [tensor for tensor in self.gives if tensor not in self.defaults]
        if self.on_error == "default" and missing:
            raise ValueError(f"`on_error: default` needs a value for {missing[0]!r} in `defaults`")
        if self.for_each and (odd := set(self.for_each.over) - set(self.inputs.values())):
            raise ValueError(f"`for_each` is over {min(odd)!r}, which is not a tensor in the step's `inputs`")
        return self


class PythonAdmission(Section):
    """Whether the author's Python runs: it is refused, or runs inside the confined server with `python: sandbox`.

    Each of the pipeline's `workers` has a process for it, which may allocate `memory_mb`, have `open_files`, and write
    files of `temporary_mb` each. With what it starts, it may be `processes`. A call may use `cpu_s` of CPU time of all
    of them together (default: only its time limits it). A worker that ends is started again after a pause.
    """

    python: Literal["refuse", "sandbox"] = "refuse"
    memory_mb: int = Field(1024, ge=256, le=1 << 20)
    cpu_s: float | None = Field(None, ge=0.1, le=86_400)
    processes: int = Field(32, ge=1, le=1024)
    open_files: int = Field(256, ge=64, le=65_536)
    temporary_mb: int = Field(1024, ge=1, le=1_048_576)


class PipelineSpec(Section):
    """The whole pipeline, as written in `pipeline.yaml`.

    A request is answered within `timeout_s` (30 if conditions, loops or Python need it), and a step within its own.
    `instances` is how many requests a pipeline with conditions, loops or Python works on at once, and `workers` how
    many of their Python steps run at once, each in a process of its own.
    """

    name: Name
    inputs: dict[TensorName, TensorType] = Field(min_length=1)
    outputs: dict[TensorName, TensorType] = Field(min_length=1)
    members: dict[TensorName, PipelineMember] = Field(default_factory=dict)
    steps: dict[Name, Step] = Field(min_length=1, max_length=_MAX_STEPS)
    admission: PythonAdmission = PythonAdmission()
    timeout_s: Timeout | None = None
    instances: int = Field(4, ge=1, le=64)
    workers: int = Field(2, ge=1, le=64)

    @property
    def functions(self) -> tuple[tuple[str, str], ...]:
        """The author's Python: each file and function that a step runs."""
        return tuple(sorted({(step.python, step.called) for step in self.steps.values() if step.python}))

    @model_validator(mode="after")
    def _free_names(self) -> Self:
        if BUNDLE in self.outputs:
            raise ValueError(f"an output can't be called {BUNDLE!r}: every pipeline has one of that name")
        return self


class Written(Section):
    """A pipeline as its author wrote it, with the line of each part, by its path (`steps.crop.inputs`)."""

    spec: PipelineSpec
    lines: dict[str, int] = Field(default_factory=dict)

    def line(self, path: str) -> int:
        """The line of a part, or of the nearest part around it; 0 if there is none."""
        return line_of(self.lines, path)


def line_of(lines: Mapping[str, int], path: str) -> int:
    """The line of the path, or of the longest part of it that has one; 0 if none has."""
    while path and path not in lines:
        path = path.rpartition(".")[0]
    return lines.get(path, 0)


def parse(text: str) -> Written:
    """The pipeline from YAML text.

    Raises:
        SpecInvalid: the text is not YAML, not a mapping, too large, or has wrong fields, each of which is named.
    """
    body = load_mapping(text, "the pipeline")
    lines = strict_yaml.lines(text, MAX_SPEC_BYTES)
    try:
        return Written(spec=PipelineSpec.model_validate(body), lines=lines)
    except ValidationError as error:
        places = [".".join(str(part) for part in detail["loc"]) for detail in error.errors(include_url=False)]
        listed = zip(places, problems(error, PipelineSpec), strict=True)
        raise SpecInvalid(
            "\n".join(f"line {line_of(lines, place) or 1}: {problem}" for place, problem in listed),
            do="`shiplift schema pipeline` prints what each field may be.",
        ) from error


def schema() -> dict[str, Any]:
    """The JSON schema of `pipeline.yaml`, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Shiplift pipeline",
        **{key: value for key, value in PipelineSpec.model_json_schema().items() if key != "title"},
    }
