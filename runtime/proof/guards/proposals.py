"""Guards that a fitted model suggests: the ends of its tables, its categories, whether it takes NaN and infinities.

They are proposals, because a model need not raise where they are broken: the rows that were asked decide.
"""

from collections.abc import Iterator, Sequence

from shiplift.runtime.records.facts import MAX_CATEGORIES, ColumnFacts, ModelFacts
from shiplift.runtime.records.guards import Guard
from shiplift.runtime.records.tensor import TensorSpec


def proposed(facts: ModelFacts) -> tuple[Guard, ...]:
    """A guard for each thing that is known of a column, in the names of the model's inputs."""
    return tuple(guard for spec in facts.inputs for guard in _of_input(spec, facts))


def renamed(guards: Sequence[Guard], names: Sequence[str], specs: Sequence[TensorSpec]) -> tuple[Guard, ...]:
    """The same for a graph whose inputs are named otherwise than the model's: `names`, in their order."""
    own = {spec.name for spec in specs}
    same = own <= set(names)
    to = dict(zip(names, names if same else (spec.name for spec in specs), strict=True))
    return tuple(
        guard.model_copy(update={"input": to[guard.input]}) for guard in guards if to.get(guard.input, "") in own
    )


def _of_input(spec: TensorSpec, facts: ModelFacts) -> Iterator[Guard]:
    columns = [column for column in facts.columns if column.input == spec.name]
    width = spec.shape[1] if len(spec.shape) == 2 else 0
    for name in ("missing", "infinite") if spec.datatype in ("FP32", "FP64") else ():
        refusing = [column.index for column in columns if getattr(column, name) is False]
        whole = None in refusing or (width > 0 and len(refusing) == width)
        yield from (
            Guard.model_validate({"input": spec.name, "column": at, name: False})
            for at in ([None] if whole else refusing)
        )
    for column in columns:
        yield from _of_table(spec, column)
        if values := _values(spec, column):
            yield Guard(input=spec.name, column=_place(spec, column), values=values)


def _of_table(spec: TensorSpec, column: ColumnFacts) -> Iterator[Guard]:
    """The ends of a table. Each is a guard of its own: negative ids may count from its end."""
    if column.table_rows and spec.datatype.startswith(("INT", "UINT")):
        yield Guard(input=spec.name, column=_place(spec, column), low=0)
        yield Guard(input=spec.name, column=_place(spec, column), high=column.table_rows - 1)


def _values(spec: TensorSpec, column: ColumnFacts) -> tuple[int | float | str, ...]:
    """The categories that the input can carry, with what stands for a missing one; none if some were left out."""
    if not column.categories or len(column.categories) >= MAX_CATEGORIES or spec.datatype == "BOOL":
        return ()
    values = (*column.categories, *column.sentinels)
    if spec.datatype == "BYTES":
        return tuple(dict.fromkeys(value for value in values if isinstance(value, str)))
    return tuple(dict.fromkeys(value for value in values if not isinstance(value, str | bool)))


def _place(spec: TensorSpec, column: ColumnFacts) -> int | None:
    return None if spec.shape[1:] == (1,) else column.index
