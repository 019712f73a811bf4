"""The lines of a pod's log that say which stage is running and how the earlier ones went.

People read them, and so does `--watch` while the pod runs: Argo gets a pod's records only when the pod ends. Every line
of a stage begins with the stage's name.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import get_args

from shiplift.runtime.records.release import Event, StageOutcome, StageRun, StageRuns

_STARTED = re.compile(r"started( for (?P<target>.+))?")
_FINISHED = re.compile(
    rf"(?P<outcome>{'|'.join(get_args(StageOutcome))}) after (?P<seconds>[0-9]+[.][0-9]+) s"
    r"(?P<cached> [(]cached[)])?(: (?P<message>.*))?"
)


def line(event: Event) -> str:
    """An event as a line of the log."""
    if event.kind == "started":
        text = f"started for {event.target}" if event.target else "started"
    elif event.kind == "progress":
        text = event.message + (f" ({event.done:.0%})" if event.done is not None else "")
    else:
        cached, message = " (cached)" if event.cached else "", f": {event.message}" if event.message else ""
        text = f"{event.outcome} after {event.seconds:.2f} s{cached}{message}"
    return f"{event.stage}: {text}"


def split(line: str, stages: Collection[str]) -> tuple[str, str]:
    """The stage that a line names, and the rest of the line; an empty stage if it names none of `stages`."""
    stage, colon, text = line.partition(": ")
    return (stage, text) if colon and stage in stages else ("", line)


def started_for(text: str) -> str:
    """The target for which a stage begins, from the rest of its line; empty if the line does not say."""
    begun = _STARTED.fullmatch(text)
    return (begun["target"] or "") if begun else ""


def told(lines: Iterable[str], stages: Collection[str]) -> Iterator[StageRuns]:
    """Yields how a pod's stages have gone so far, after each line that adds to it. A restarted stage has not ended."""
    report = StageRuns()
    for each in lines:
        stage, text = split(each, stages)
        if stage and (begun := _STARTED.fullmatch(text)):
            ended = tuple(run for run in report.runs if run.name != stage)
            report = StageRuns(runs=ended, under_way=stage, target=begun["target"] or "")
        elif stage == report.under_way and (match := _FINISHED.fullmatch(text)):
            run = StageRun(
                name=stage,
                target=report.target,
                seconds=float(match["seconds"]),
                cached=bool(match["cached"]),
                outcome=match["outcome"],
                message=match["message"] or "",
            )
            report = StageRuns(runs=(*report.runs, run))
        else:
            continue
        yield report
