"""The three steps of scoring a dataset: plan, score a share of its parts, finish. Each can be killed and run again."""

import hashlib
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shiplift.runtime.base.errors import ArtifactCorrupt, PartsFailed
from shiplift.runtime.base.progress import progress
from shiplift.runtime.host.folders import scratch_folder
from shiplift.runtime.offline.columns import columns_of, output_schema, types_of
from shiplift.runtime.offline.crew import Crew, Said
from shiplift.runtime.offline.dataset import Dataset, Unreadable
from shiplift.runtime.offline.output import Output, PartNote, StoredPlan
from shiplift.runtime.offline.planning import begin, require_rows, rows_of, scorable, work_of
from shiplift.runtime.offline.serving import batch_of, privately_served
from shiplift.runtime.offline.worker import WorkerJob, serialized
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.offline import (
    InputPart,
    OfflineOrder,
    OfflinePlan,
    OfflineResult,
    OfflineShare,
    PartFailure,
    ShareScored,
)
from shiplift.runtime.records.site import Site

_PODS = 4  # if the order does not say how many
_REQUESTS = 16  # of full batches, for which rows are read at a time
_TOLD_S = 1.0


def planned(site: Site, order: OfflineOrder, package: Package) -> OfflinePlan:
    """Settles what is scored, and writes it to the output.

    Raises:
        DataInvalid, NotFound, UsageError: the model does not take the dataset.
        OutputTaken: the output has something else.
        StorageFull: no space is left.
    """
    require_rows(package)
    work, output = work_of(order, package), Output(order.output)
    plan = begin(output, work, overwrite=order.overwrite)
    for failure in work.unreadable:
        progress(f"{failure.file} can't be read: {failure.reason}")
    left = [part for part in plan.parts if output.note(part) is None]
    pods = 1 if site.place.one_server else min(order.workers or _PODS, max(len(left), 1))
    return OfflinePlan(
        package=package,
        digest=_digest(plan),
        rows=rows_of(plan.parts),
        parts=len(plan.parts),
        done=len(plan.parts) - len(left),
        shares=tuple(OfflineShare(name=f"{at:03}", at=at, of=pods) for at in range(pods)),
        unreadable=work.unreadable,
    )


def scored(site: Site, order: OfflineOrder, plan: OfflinePlan, share: OfflineShare) -> ShareScored:
    """Scores a share's parts that are not there yet, on a private server.

    Raises:
        DataInvalid: the model refused a row, and the order ends then.
        PartsFailed: a part can't be read, and the order ends then.
        ServerFailed, MissingTool, ArtifactCorrupt: the package can't be served.
        StorageFull: no space is left.
    """
    output = Output(order.output)
    stored = _stored(output, plan)
    parts = [part for part in stored.parts[share.at :: share.of] if output.note(part) is None]
    if not parts:
        return ShareScored(name=share.name)
    with scratch_folder(Path(site.home)) as folder:
        progress("starting a private server")
        batch = batch_of(plan.package, order.batch)
        with privately_served(site, plan.package, batch, folder) as served:
            job = WorkerJob(
                served=served,
                input=order.input,
                output=order.output,
                **_reading(order, plan.package, parts[0], stored),
                on_error=order.on_error,
                rows=_REQUESTS * batch,
                scratch=str(output.scratch(folder)),
            )
            workers = order.workers if order.workers and site.place.one_server else max(1, (os.cpu_count() or 1) // 2)
            tally = _Tally(name=share.name, order=order, of_rows=rows_of(parts), of_parts=len(parts))
            with Crew(job, folder / "workers.log").working(parts, workers) as said:
                for each in said:
                    tally.take(each)
            return tally.result


def finished(order: OfflineOrder, plan: OfflinePlan, shares: Sequence[ShareScored]) -> OfflineResult:
    """Says that all parts are there.

    Raises:
        PartsFailed: they are not.
    """
    output = Output(order.output)
    stored = _stored(output, plan)
    notes = [note for part in stored.parts if (note := output.note(part))]
    failed = (*plan.unreadable, *(failure for share in shares for failure in share.failed))
    result = OfflineResult(
        model=plan.package.model,
        version=plan.package.version,
        digest=plan.package.repository.sha256,
        output=order.output,
        parts=len(notes),
        rows=sum(note.rows for note in notes),
        refused=sum(note.refused for note in notes),
        rows_per_s=sum(share.rows / share.seconds for share in shares if share.seconds),
        failed=failed,
    )
    if len(notes) < len(stored.parts) or failed:
        first = f": {failed[0].file}: {failed[0].reason}" if failed else ""
        raise PartsFailed(
            f"{len(notes)} of {len(stored.parts) + len(plan.unreadable)} parts are in {order.output}{first}",
            do="Correct the files, then run the same command again: it scores the parts that are missing.",
        )
    output.put_result(result)
    return result


@dataclass
class _Tally:
    """Counts what workers say, and tells how far they are."""

    name: str
    order: OfflineOrder
    of_rows: int
    of_parts: int
    rows: int = 0
    refused: int = 0
    done: int = 0
    failed: list[PartFailure] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    _told: float = 0.0

    def take(self, said: Said | None) -> None:
        """Takes a message; None: nothing happened for a moment.

        Raises:
            ShipliftError: it ends the share.
        """
        if said is not None:
            self._take(said.part, said.what)
        if time.monotonic() - self._told >= _TOLD_S:
            self._told = time.monotonic()
            progress(self._message(), self.rows / self.of_rows if self.of_rows > 0 else None)

    def _take(self, part: InputPart, what: dict[str, Any]) -> None:
        if "rows" in what:
            self.rows += int(what["rows"])
        elif "note" in what:
            self.done += 1
            self.refused += PartNote.model_validate(what["note"]).refused
        elif "failure" in what:
            raise Failure.model_validate(what["failure"]).error()
        else:
            self._fail(PartFailure(part=part.name, file=part.file, reason=what.get("unreadable") or what["died"]))

    def _fail(self, failure: PartFailure) -> None:
        self.failed.append(failure)
        text = f"part {failure.part} of {failure.file} was not scored: {failure.reason}"
        if self.order.on_error == "fail":
            raise PartsFailed(
                text, do="Correct the file, or use --errors skip or --errors column, with which other parts go on."
            )
        progress(text)

    def _message(self) -> str:
        of_rows = f" / {self.of_rows:,}" if self.of_rows > 0 else ""
        refused = f", {self.refused:,} refused" if self.refused else ""
        return f"{self.rows:,}{of_rows} rows, {self._rate:,.0f}/s, {self.done}/{self.of_parts} parts{refused}"

    @property
    def _rate(self) -> float:
        return self.rows / max(time.monotonic() - self.began, 1e-3)

    @property
    def result(self) -> ShareScored:
        """What the share came to."""
        return ShareScored(
            name=self.name,
            rows=self.rows,
            refused=self.refused,
            seconds=round(time.monotonic() - self.began, 3),
            failed=tuple(self.failed),
        )


def _reading(order: OfflineOrder, package: Package, part: InputPart, stored: StoredPlan) -> dict[str, Any]:
    """The columns to read and to write, found again where the part is."""
    model = scorable(package)
    dataset = Dataset(order.input, types_of(model.schema))
    for file in dict.fromkeys((part.file, *(each.file for each in stored.parts))):
        with suppress(Unreadable):
            found = dataset.schema(file)
            columns = columns_of(model.schema, found, order, file)
            schema = output_schema(model, found, columns, order).with_metadata(_metadata(package))
            return {"taken": columns.taken, "kept": columns.kept, "arrow_schema": serialized(schema)}
    raise PartsFailed(f"no file in {order.input} can be read", do="Look at the files.")


def _metadata(package: Package) -> dict[str, str]:
    """What every part says about itself."""
    return {
        "shiplift.model": package.model,
        "shiplift.version": str(package.version),
        "shiplift.package": package.repository.sha256,
        "shiplift.form": package.described,
    }


def _stored(output: Output, plan: OfflinePlan) -> StoredPlan:
    stored = output.plan()
    if stored is None or _digest(stored) != plan.digest:
        raise ArtifactCorrupt(f"the plan in {output.uri} was changed meanwhile", do="Run the same command again.")
    return stored


def _digest(plan: StoredPlan) -> str:
    return hashlib.sha256(plan.model_dump_json().encode()).hexdigest()
