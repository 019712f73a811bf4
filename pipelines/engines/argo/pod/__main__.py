"""Engine 2's half in a pod: runs the pod's stages, one after another, or a stage by hand.

    python -m shiplift.pipelines.engines.argo.pod deploy+gate --out DIR --slo '{...}' --load_report '{...}' ...

A stage's record is passed to the later stages, and written where the engine looks. `admit+export+each-target` goes on
with a fan-out if its broker says that the only item may run here. The first stage that fails or objects ends the pod.
Its exit code says how, the pod's termination message which stage and why, and `stage_runs.json` and `failure.json` say
both to the last stage. A pod that was lost goes on where it was: what its stages finished are cache hits.
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
    """Waits for the pod's broker, if it has one, and ends it after the stages."""
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
