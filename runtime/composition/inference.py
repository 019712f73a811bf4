"""The types of a pipeline's tensors, followed from its inputs through the steps; every mismatch is a problem."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shiplift.runtime.composition.checked import Edge
from shiplift.runtime.composition.types import by_name, described, rows_of, unified, widened
from shiplift.runtime.composition.wiring import CLIENT
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.spec.pipeline import Constant, PipelineSpec, Step, TensorType

Complaint = tuple[str, str, str]  # path, what, do


@dataclass(kw_only=True)
class Types:
    """What is known about each tensor, with the edges and the complaints. Unknown tensors cause no complaint."""

    spec: PipelineSpec
    packages: Mapping[str, Package]
    givers: Mapping[str, str]
    known: dict[str, TensorType] = field(default_factory=dict)
    given: dict[str, TensorType] = field(default_factory=dict)  # what the steps themselves give when they run
    edges: list[Edge] = field(default_factory=list)
    complaints: list[Complaint] = field(default_factory=list)

    def follow(self, order: tuple[str, ...]) -> None:
        """Follows the steps in their order, then the outputs."""
        self.known.update(self.spec.inputs)
        for name in order:
            step = self.spec.steps[name]
            if step.member:
                self._member(name, step)
            else:
                self._python(name, step)
        for name, wanted in self.spec.outputs.items():
            self._connect(f"outputs.{name}", name, CLIENT, wanted)

    # --- steps ---

    def _python(self, name: str, step: Step) -> None:
        for tensor in dict.fromkeys(step.inputs.values()):
            if kind := self.known.get(tensor):
                self._edge(tensor, name, kind)
        gives = {key: output for key, output in step.outputs.items() if isinstance(output, TensorType)}
        self._give(name, step, gives)

    def _member(self, name: str, step: Step) -> None:
        package = self.packages.get(step.member)
        if package is None:
            return
        inputs, outputs = by_name(package.signature.inputs), by_name(package.signature.outputs)
        at = f"steps.{name}"
        self._names(f"{at}.inputs", step.inputs, inputs, f"{step.member} takes", missing=True)
        self._names(f"{at}.outputs", step.outputs, outputs, f"{step.member} gives", missing=False)
        taken = {key: inputs[key] for key in step.inputs if key in inputs}
        if step.for_each:
            self._over(name, step, taken)
        else:
            self._whole(name, step, package, taken)
        rows = -1 if step.for_each else self._rows(name, step)
        gives = {
            tensor: _with_rows(kind, rows) if kind.shape[0] == -1 else kind
            for key, kind in outputs.items()
            if isinstance(tensor := step.outputs.get(key), str)
        }
        self._give(name, step, gives)

    def _names(
        self, path: str, written: Mapping[str, object], known: Mapping[str, TensorType], verb: str, *, missing: bool
    ) -> None:
        listed = ", ".join(f"{key} {described(kind)}" for key, kind in known.items())
        for key in written:
            if key not in known:
                self.complaints.append((f"{path}.{key}", f"there is no {key!r}: {verb} {listed}", "Use its names."))
        for key in known if missing else ():
            if key not in written:
                self.complaints.append((path, f"{key!r} is missing: {verb} {listed}", "Name a tensor for it."))

    def _whole(self, name: str, step: Step, package: Package, taken: Mapping[str, TensorType]) -> None:
        """The edges of a member that gets whole tensors."""
        for key, wanted in taken.items():
            tensor, path = step.inputs[key], f"steps.{name}.inputs.{key}"
            kind = self.known.get(tensor)
            most = rows_of(package)
            if kind and (kind.shape[0] > most or (kind.shape[0] == -1 and most == 1)):
                rows = "any number of rows" if kind.shape[0] == -1 else f"{kind.shape[0]} rows"
                self.complaints.append(
                    (
                        path,
                        f"{tensor} has {rows}, and {step.member} takes at most {most} in a request",
                        f"Write `for_each: {{over: {tensor}, max: ...}}`.",
                    )
                )
            else:
                self._connect(path, tensor, name, wanted)

    def _over(self, name: str, step: Step, taken: Mapping[str, TensorType]) -> None:
        """The edges of a member that gets rows: any number of a tensor that it loops over, one row of others."""
        assert step.for_each is not None  # noqa: S101 - the caller checked
        for key, wanted in taken.items():
            tensor, path = step.inputs[key], f"steps.{name}.inputs.{key}"
            iterated = tensor in step.for_each.over
            rows = TensorType(datatype=wanted.datatype, shape=(-1 if iterated else 1, *wanted.shape[1:]))
            self._connect(path, tensor, name, rows)

    def _rows(self, name: str, step: Step) -> int:
        """How many rows a member without a loop gets and gives: as many as its inputs have; -1 if unknown."""
        counts = {tensor: self.known[tensor].shape[0] for tensor in step.inputs.values() if tensor in self.known}
        sizes = {count for count in counts.values() if count != -1}
        if len(sizes) > 1:
            listed = ", ".join(f"{tensor} has {count}" for tensor, count in counts.items() if count != -1)
            self.complaints.append(
                (
                    f"steps.{name}.inputs",
                    f"the inputs differ in their number of rows: {listed}",
                    "Use `for_each`, or let a Python step bring them together.",
                )
            )
        return next(iter(sizes)) if len(sizes) == 1 else -1

    # --- tensors ---

    def _give(self, name: str, step: Step, gives: Mapping[str, TensorType]) -> None:
        """Notes the types of what a step gives, whether it runs or not."""
        self.given.update(gives)
        for tensor, kind in gives.items():
            other = step.otherwise.get(tensor)
            if not step.may_not_run:
                self.known[tensor] = kind
            elif other is None:
                self.known[tensor] = _with_rows(kind, -1)
            elif other in self.known:
                self.known[tensor] = self._either(name, tensor, kind, other)
            if (constant := step.defaults.get(tensor)) is not None:
                self.complaints += _misfits(f"steps.{name}.defaults.{tensor}", constant, kind)
        if step.when and (looked_at := self.known.get(step.when.tensor)):
            self._edge(step.when.tensor, name, looked_at)
            self.complaints += _incomparable(f"steps.{name}.when", step, looked_at)

    def _either(self, name: str, tensor: str, kind: TensorType, other: str) -> TensorType:
        """The type of a tensor that is either a step's own or a substitute."""
        stand_in, path = self.known[other], f"steps.{name}.otherwise.{tensor}"
        if unified(kind.shape, stand_in.shape) is None or kind.datatype != stand_in.datatype:
            self.complaints.append(
                (
                    path,
                    f"{other} is {described(stand_in)}, but stands in for {tensor}, which is {described(kind)}",
                    "Name a tensor of the same datatype and shape.",
                )
            )
            return kind
        self._edge(other, name, stand_in)
        return kind.model_copy(update={"shape": widened(kind.shape, stand_in.shape)})

    def _connect(self, path: str, tensor: str, taker: str, wanted: TensorType) -> None:
        """Adds an edge if its two ends fit, or a complaint."""
        kind = self.known.get(tensor)
        if kind is None:
            return
        shape = unified(kind.shape, wanted.shape)
        who = taker or "the output"
        if kind.datatype != wanted.datatype or shape is None:
            what = "datatype" if kind.datatype != wanted.datatype else "shape"
            self.complaints.append(
                (
                    path,
                    f"{tensor} is {described(kind)}, but {who} takes {described(wanted)}",
                    f"Put a Python step between them that changes the {what}, or take another tensor.",
                )
            )
        else:
            self._edge(tensor, taker, TensorType(datatype=kind.datatype, shape=shape))

    def _edge(self, tensor: str, taker: str, kind: TensorType) -> None:
        giver = self.givers.get(tensor, CLIENT)
        edge = Edge(tensor=tensor, giver=giver, taker=taker, datatype=kind.datatype, shape=kind.shape)
        if not any((e.tensor, e.taker) == (edge.tensor, edge.taker) for e in self.edges):
            self.edges.append(edge)


def _with_rows(kind: TensorType, rows: int) -> TensorType:
    return kind.model_copy(update={"shape": (rows, *kind.shape[1:])})


def _misfits(path: str, constant: Constant, kind: TensorType) -> Iterator[Complaint]:
    """Why a constant can't be an output's value."""
    text = isinstance(constant.value, str)
    if text != (kind.datatype == "BYTES"):
        yield path, f"{constant.value!r} is not {kind.datatype}", "Write a text for BYTES, else a number."
    if constant.shape is None and -1 in kind.shape[1:]:
        yield (
            path,
            f"the output is {described(kind)}, with a dimension of any size",
            "Write `{value: ..., shape: [...]}`.",
        )
    if constant.shape is not None and unified(constant.shape, kind.shape) is None:
        yield path, f"shape {list(constant.shape)} does not fit {described(kind)}", "Write a shape that does."


def _incomparable(path: str, step: Step, kind: TensorType) -> Iterator[Complaint]:
    """Why a condition can't test a tensor."""
    assert step.when is not None  # noqa: S101 - the caller checked
    text = kind.datatype == "BYTES"
    if step.when.equals is None and text:
        yield path, f"{step.when.tensor} is {described(kind)}: text has no order", "Use `equals`."
    if step.when.equals is not None and isinstance(step.when.equals, str) != text:
        yield f"{path}.equals", f"{step.when.equals!r} is not {kind.datatype}", "Write a text for BYTES, else a number."
