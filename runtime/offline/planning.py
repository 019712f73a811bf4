"""What is to be scored, settled before anything runs, and compared with what an earlier run of the order settled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shiplift.runtime.base.errors import DataInvalid, OutputTaken
from shiplift.runtime.offline.columns import SelectedColumns, columns_of, output_schema, types_of
from shiplift.runtime.offline.dataset import PARQUET, Dataset, Unreadable, format_of
from shiplift.runtime.offline.output import Output, StoredPlan
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.offline import InputPart, OfflineOrder, PartFailure
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.serving.scoring.models import Scorable

_SAME = ("input", "keep", "on_error", "batch", "limit")  # what an output's content depends on, of an order
_HOW = "Name what it was begun with, use another --output, or --overwrite to begin again."


@dataclass(frozen=True, kw_only=True)
class ScoringPlan:
    """What is to be scored: the plan as it is kept, the columns that are read, and the schema of the output.

    `unreadable` are files whose parts can't even be counted.
    """

    plan: StoredPlan
    columns: SelectedColumns
    schema: pa.Schema
    unreadable: tuple[PartFailure, ...] = ()


def scorable(package: Package, grpc: str = "", http: str = "") -> Scorable:
    """A package as its server at these addresses is asked."""
    served = ServedModel(
        model=package.model,
        name="",
        version=package.version,
        grpc=grpc,
        http=http,
        signature=package.signature,
        scoring=package.scoring,
    )
    return Scorable(served=served)


def require_rows(package: Package) -> None:
    """Checks that a package answers rows that don't depend on each other.

    Raises:
        DataInvalid: it does not.
    """
    why = (
        "keeps a state between requests, so its answers depend on their order"
        if package.stateful
        else "continues texts; `shiplift openai` serves it"
        if package.signature.streamed
        else "is a chat model or an agent, which takes conversations; `shiplift openai` serves it"
        if package.scoring and package.scoring.agent
        else ""
    )
    if why:
        raise DataInvalid(f"{package.model}/{package.version} {why}", do="Score with a model of tables or tensors.")


def work_of(order: OfflineOrder, package: Package) -> ScoringPlan:
    """What an order asks for. Every file's columns are checked.

    Raises:
        DataInvalid: the dataset has no rows, or a column is missing or of a wrong type.
        NotFound: there is no such dataset.
        UsageError: a column that is to be kept does not exist, or has the name of one of the answer.
    """
    model = scorable(package)
    dataset = Dataset(order.input, types_of(model.schema))
    files = dataset.files()
    parts: list[InputPart] = []
    unreadable: list[PartFailure] = []
    first: tuple[SelectedColumns, pa.Schema] | None = None
    for number, file in enumerate(files):
        try:
            found = dataset.schema(file.path)
            new = dataset.parts(file.path, number)
        except Unreadable as error:
            unreadable.append(PartFailure(file=file.path, reason=str(error)))
            continue
        columns = columns_of(model.schema, found, order, f"{file.path} in {order.input}")
        schema = output_schema(model, found, columns, order)
        if first and (columns.read, schema) != (first[0].read, first[1]):
            raise DataInvalid(
                f"{file.path} in {order.input} has other columns or types than {parts[0].file}: "
                f"{_difference(schema, first[1])}",
                do="Give all files the same schema.",
            )
        first = first or (columns, schema)
        parts += new
    parts = _limited(dataset, parts, order.limit)
    if not parts or first is None:
        if unreadable:
            raise DataInvalid(f"{unreadable[0].file} can't be read: {unreadable[0].reason}", do="Write it again.")
        raise DataInvalid(f"{order.input} has no rows", do="Give a dataset with rows.")
    columns, schema = first
    plan = StoredPlan(
        model=package.model,
        version=package.version,
        digest=package.repository.sha256,
        order=order.model_copy(update={"overwrite": False, "workers": 0}),
        files=files,
        parts=tuple(parts),
        columns=columns.read,
        schema_text=str(schema),
    )
    return ScoringPlan(plan=plan, columns=columns, schema=schema, unreadable=tuple(unreadable))


def begin(output: Output, work: ScoringPlan, *, overwrite: bool) -> StoredPlan:
    """Settles the plan of an output: that of an earlier run of the same order, or else this one.

    Raises:
        OutputTaken: the output has something else.
    """
    before = output.plan()
    if before is not None and not overwrite:
        _require_same(before, work.plan, output.uri)
        plan = _with_unchanged(output, before, work)
    elif before is None and not overwrite and not output.is_empty():
        raise OutputTaken(
            f"{output.uri} has files that no scoring left", do="Name an empty or new folder as the output."
        )
    else:
        output.clear()
        plan = work.plan
    output.sweep()
    output.put_plan(plan)
    return plan


def rows_of(parts: Sequence[InputPart]) -> int:
    """How many rows parts have; -1 if their files don't say."""
    return -1 if any(part.rows < 0 for part in parts) else sum(part.rows for part in parts)


def _require_same(before: StoredPlan, now: StoredPlan, where: str) -> None:
    if (before.model, before.version, before.digest) != (now.model, now.version, now.digest):
        again = "" if before.version != now.version else " in another package"
        raise OutputTaken(
            f"{where} was begun with {before.model}/{before.version}, and this would go on with "
            f"{now.model}/{now.version}{again}",
            do=f"Name {before.model}/{before.version} to go on, or use --overwrite or another --output.",
        )
    for name in _SAME:
        old, new = getattr(before.order, name), getattr(now.order, name)
        if old != new:
            raise OutputTaken(f"{where} was begun with {name} {old!r}, and this order says {new!r}", do=_HOW)
    if (before.columns, before.schema_text) != (now.columns, now.schema_text):
        raise OutputTaken(f"{where} was begun when the dataset had other columns", do=_HOW)


def _with_unchanged(output: Output, before: StoredPlan, work: ScoringPlan) -> StoredPlan:
    """The earlier plan, if the dataset is the same. A file that was written to since may have the same bytes.

    Raises:
        OutputTaken: it is not.
    """
    now = {file.path: file for file in work.plan.files}
    then = {file.path: file for file in before.files}
    if changed := sorted(now.keys() ^ then.keys()):
        what = "is new" if changed[0] in now else "is gone"
        raise OutputTaken(f"{changed[0]} in {before.order.input} {what} since {output.uri} was begun", do=_HOW)
    touched = {path for path, file in now.items() if file != then[path]}
    dataset = Dataset(before.order.input)
    if before.parts != work.plan.parts and not touched:
        raise OutputTaken(f"{output.uri} was divided in another way", do=_HOW)
    for part in before.parts:
        note = output.note(part) if part.file in touched else None
        if note and (part not in work.plan.parts or dataset.digest(part, before.columns) != note.input_sha256):
            raise OutputTaken(
                f"{part.file} in {before.order.input} has changed since part {part.name} of it was scored", do=_HOW
            )
    return work.plan


def _limited(dataset: Dataset, parts: list[InputPart], limit: int) -> list[InputPart]:
    """The parts with the first rows of a dataset."""
    if not limit:
        return parts
    taken, left = [], limit
    for part in parts:
        if left <= 0:
            break
        has = part.rows if format_of(part.file) == PARQUET else dataset.count(part.file, left)
        taken.append(part.model_copy(update={"rows": min(has, left)}))
        left -= has
    return taken


def _difference(one: pa.Schema, other: pa.Schema) -> str:
    mine, theirs = _typed(one), _typed(other)
    names = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
    return ", ".join(f"{name} is {mine.get(name, 'missing')}, not {theirs.get(name, 'there')}" for name in names[:5])


def _typed(schema: pa.Schema) -> dict[str, Any]:
    return {field.name: str(field.type) for field in schema}
