"""The types of tensors between steps: datatypes must be equal, and shapes unify, -1 with any size."""

from collections.abc import Sequence

from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.tensor import TensorSpec
from shiplift.runtime.spec.pipeline import TensorType

Shape = tuple[int, ...]


def unified(left: Sequence[int], right: Sequence[int]) -> Shape | None:
    """The shape that fits both, or None."""
    if len(left) != len(right):
        return None
    pairs = tuple(zip(left, right, strict=True))
    if any(-1 not in pair and pair[0] != pair[1] for pair in pairs):
        return None
    return tuple(max(pair) for pair in pairs)


def widened(left: Sequence[int], right: Sequence[int]) -> Shape:
    """The shape of a tensor that is one or the other, both of the same rank: -1 where they differ."""
    return tuple(one if one == other else -1 for one, other in zip(left, right, strict=True))


def described(kind: TensorType) -> str:
    """A type for people: `FP32[-1, 3, 48, 320]`."""
    return f"{kind.datatype}[{', '.join(map(str, kind.shape))}]"


def rows_of(package: Package) -> int:
    """How many rows a member takes per request: 1 for a model of single samples, otherwise its largest batch."""
    return 1 if package.signature.batch == 1 else package.config.max_batch


def served(tensor: TensorSpec) -> TensorType:
    """The type of a member's tensor in requests, where one number per sample is a column."""
    return TensorType(datatype=tensor.datatype, shape=(tensor.shape[:1] or (-1,)) + (tensor.shape[1:] or (1,)))


def by_name(tensors: Sequence[TensorSpec]) -> dict[str, TensorType]:
    """The types of a member's inputs or outputs, as `served`."""
    return {tensor.name: served(tensor) for tensor in tensors}
