"""Runs a pod's stages, one after another. Also runs a single stage by hand.

    python -m shiplift.pipelines.engines.argo.pod deploy+gate --out DIR --slo '{...}' --load_report '{...}' ...

A stage's record is passed to later stages, and written to a file that Argo reads. `admit+export+each-target` continues
with a fan-out if the broker says that its only item may run here.

The first stage that fails or objects ends the pod. The exit code says how it ended, the pod's termination message says
which stage and why, and `stage_runs.json` and `failure.json` pass both to the release's last stage. A lost pod is
started again and resumes where it was: stages that had finished are cache hits.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from shiplift.pipelines.engines.argo.pod.call import Call, link_mounts, parse
from shiplift.pipelines.engines.argo.pod.messages import explain
from shiplift.pipelines.engines.argo.pod.walk import run
from shiplift.pipelines.engines.attempt import failure_of
from shiplift.pipelines.engines.interruption import Interrupted
from shiplift.runtime.base.text import printable
from shiplift.runtime.records.site import Site


@contextmanager
def _broker_of(call: Call) -> Iterator[None]:
    """Waits for the pod's broker, if it has one, and ends the broker after the stages."""
    if call.broker is None:
        yield
        return
    try:
        call.broker.wait()
        yield
    finally:
        call.broker.end()


def main() -> int:
    """Runs the stages that the command line names."""
    try:
        call = parse(sys.argv[1:])
        link_mounts(call.arguments[Site.parameter()])
        with _broker_of(call):
            return run(call)
    except (Interrupted, Exception) as error:  # a wrong command line, an unavailable stored record, a bug
        failure = failure_of(error)
        print(printable(failure.message), file=sys.stderr, flush=True)
        explain(failure.message)
        return failure.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
