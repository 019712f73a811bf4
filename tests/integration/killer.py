"""Runs promotions and rollbacks that die at their n-th executed line of our code.

It reads orders from stdin, one JSON line each (`{"verb", "model", "version", "point", "abort"}`), and forks for each.
At point 0 nothing is killed. At line `abort`, a person aborts the promotion (0: nobody does). It answers with a JSON
line: `{"killed", "lines", "failed"}`.
"""

import json
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import mlflow  # noqa: F401 - imported once, before the forks

from shiplift.pipelines.engines.local import stack
from shiplift.runtime.base.errors import Aborted
from shiplift.runtime.records.deployment import Deployment, Endpoint, ServerProcess
from shiplift.runtime.records.model import ModelVersion
from shiplift.runtime.records.process import Process
from shiplift.runtime.records.promotion import Abort, Champion
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.verdict import Outcome, Verdict
from shiplift.runtime.serving.machine import moving
from shiplift.runtime.spec.groups import Delivery
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry.client import Registry
from shiplift.runtime.store.registry.terms import CHAMPION, PREVIOUS
from shiplift.steps.promote import promote
from shiplift.steps.rollback import rollback

FILES = (
    "steps/promote.py",
    "steps/rollback.py",
    "runtime/serving/champion.py",
    "runtime/serving/give_back.py",
    "runtime/serving/machine/production.py",
    "runtime/serving/triton/repository.py",
)
executed = 0


def act(home: Path, verb: str, model: str, version: int, point: int, abort: int) -> None:
    site = stack.site(home, stack.require(home))
    registry = Registry(site.registry_uri)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        global executed
        if not frame.f_code.co_filename.endswith(FILES):
            return None
        if event == "line":
            executed += 1
            if executed == abort:
                moving.abort(home, model, Abort(by="ana", reason="it looks wrong"))
            if executed == point:
                os.kill(os.getpid(), 9)
        return trace

    if verb == "rollback":
        done = registry.alias(model, CHAMPION) == version
        if point == 0 and done and registry.alias(model, PREVIOUS) != version:
            return  # it was killed after its last effect: another rollback would undo it
        sys.settrace(trace)
        rollback(site, model)
    else:
        promotion = Ledger(site, Request(model=model, version=version)).promotion()
        assert promotion is not None
        deployment = Deployment(
            package=promotion.package,
            endpoint=Endpoint(http="", grpc=""),
            workload=ServerProcess(process=Process(pid=1, started_at=0), repository=""),
        )
        judged = ModelVersion(
            name=model,
            version=version,
            registered_at=promotion.registered_at,
            digest=promotion.digest,
            flavor="sklearn",
            files=promotion.package.repository,
        )
        champion = Champion(version=registry.alias(model, CHAMPION))
        request, trigger = Request(model=model, version=version), Trigger(allow_older=True)
        sys.settrace(trace)
        verdict = Verdict(outcome=Outcome.PASS, checks=())
        with suppress(Aborted):
            promote(site, request, trigger, judged, verdict, deployment, champion, Delivery())
    sys.settrace(None)


def main(home: Path) -> None:
    for line in sys.stdin:
        order = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                act(home, order["verb"], order["model"], order["version"], order["point"], order["abort"])
                os.write(writer, str(executed).encode())
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(writer)
        lines = os.read(reader, 100).decode()
        os.close(reader)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status)
        print(
            json.dumps({"killed": killed, "lines": int(lines or 0), "failed": not killed and status != 0}), flush=True
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
