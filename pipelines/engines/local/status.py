"""The status of a home's stack, and of the models in its registry."""

import time
from collections.abc import Iterator
from pathlib import Path

from shiplift.pipelines.engines.answers import (
    ModelStatus,
    ModelVersions,
    StackProcess,
    StackStatus,
    UnderWay,
    VersionStatus,
    champion_drift,
)
from shiplift.pipelines.engines.local import compartments, drifting, incidents, stack
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.pipelines.engines.pace import pace_of
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.deployment import Endpoint
from shiplift.runtime.serving.machine.baking import under_way as under_way_of
from shiplift.runtime.serving.machine.served import served, served_version
from shiplift.runtime.store.registry.rest import PATIENT_S, RestRegistry
from shiplift.runtime.store.registry.terms import CHALLENGER, CHAMPION, PREVIOUS, TAG

_SHOWN = (CHAMPION, CHALLENGER, PREVIOUS)


class Endpoints(Record):
    """The addresses of a stack."""

    mlflow: str
    receiver: str
    http: str
    grpc: str
    metrics: str
    scoring: str
    page: str


def endpoints(running: stack.Stack) -> Endpoints:
    """Where a stack's processes answer."""
    host = stack.HOST
    return Endpoints(
        mlflow=running.registry_uri,
        receiver=f"http://{host}:{running.receiver_port}",
        http=f"http://{host}:{running.http_port}",
        grpc=f"{host}:{running.grpc_port}",
        metrics=f"http://{host}:{running.metrics_port}/metrics",
        scoring=f"http://{host}:{running.scoring_port}",
        page=f"http://{host}:{running.page_port}",
    )


def of_stack(home: Path) -> StackStatus:
    """The status of a home's stack, running or not."""
    saved = stack.read(home)
    if saved is None:
        return StackStatus(home=str(home), running=False)
    memory = stack.memory(saved)
    where = endpoints(saved)
    addresses = {
        "mlflow": where.mlflow,
        "receiver": where.receiver,
        "triton": where.http,
        "scoring": where.scoring,
        "page": where.page,
    }
    parts = tuple(
        StackProcess(
            name=name,
            running=saved.runs(name),
            pid=saved.processes[name].pid if saved.runs(name) else 0,
            memory_mb=round(memory.get(name, 0), 1),
            address=addresses.get(name, ""),
        )
        for name in saved.names
    )
    releases = Releases(home)
    return StackStatus(
        home=str(home),
        running=all(part.running for part in parts),
        parts=parts,
        memory_mb=round(sum(memory.values()), 1),
        models=_models(home, saved) if saved.runs("mlflow") or not saved.embedded_registry else (),
        releasing=tuple(under_way(releases)),
        incidents=incidents.recent(home),
    )


def under_way(releases: Releases) -> Iterator[UnderWay]:
    """The releases that have not ended: those that have begun, then the queue."""
    waiting = []
    for name in releases.pending():
        request = releases.order(name).request
        release = UnderWay(release=name, model=request.model, version=request.version)
        if not releases.worker(name):
            waiting.append(release)
        elif at := releases.stage_under_way(name):
            event, since = at
            seconds = max(0.0, time.time() - since)
            earlier = filter(None, map(releases.result, releases.of(request.model)))
            found = {
                "stage": event.stage,
                "target": event.target,
                "seconds": seconds,
                "left_s": pace_of(earlier).left(event.stage, event.target, seconds),
                "stages": releases.stages_so_far(name),
            }
            yield release.model_copy(update=found)
        else:
            yield release
    for place, release in enumerate(waiting, start=1):
        yield release.model_copy(update={"place": place})


def _models(home: Path, saved: stack.Stack) -> tuple[ModelStatus, ...]:
    registry, pulse_of = RestRegistry(saved.registry_uri, timeout_s=PATIENT_S), compartments.reader(home)

    def status_of(name: str, latest: int, aliases: dict[str, int]) -> ModelStatus:
        version = served_version(home, name)
        return ModelStatus(
            model=name,
            champion=version or aliases.get(CHAMPION, 0),
            challenger=aliases.get(CHALLENGER, 0),
            previous=aliases.get(PREVIOUS, 0),
            latest=latest,
            baking=_baking(home, name),
            data_drift=_data_drift(home, name),
            drift=champion_drift(name, version, aliases),
            **pulse_of(name).model_dump(),
        )

    return tuple(status_of(*each) for each in registry.models())


def _baking(home: Path, model: str) -> str:
    known = under_way_of(home, model)
    return known.sentence if known else ""


def _data_drift(home: Path, model: str) -> str:
    known = drifting.state_of(home, model)
    return known.sentence if known else ""


def of_model(home: Path, model: str) -> ModelVersions:
    """The status of a model's versions, newest first.

    Raises:
        StackDown: the stack is not running.
        NotFound: the registry does not know the model.
    """
    running = stack.require(home)
    registry = RestRegistry(running.registry_uri, timeout_s=PATIENT_S)
    name = serving_name(model)
    aliases = registry.aliases(model)
    versions = sorted(registry.versions(model), key=lambda info: -info.version)
    releasing = {each.version: each for each in under_way(Releases(home)) if each.model == model}
    serving = served(home, model)
    return ModelVersions(
        model=model,
        serving_name=name,
        endpoint=Endpoint(http=f"{endpoints(running).http}/v2/models/{name}", grpc=endpoints(running).grpc),
        drift=champion_drift(model, served_version(home, model), aliases),
        baking=_baking(home, model),
        data_drift=_data_drift(home, model),
        **compartments.read(home, model).model_dump(),
        proof=serving.package.proof if serving else None,
        idle=serving.package.idle if serving else "",
        versions=tuple(
            VersionStatus(
                version=info.version,
                aliases=tuple(alias for alias in _SHOWN if aliases.get(alias) == info.version),
                outcome=info.tags.get(f"{TAG}outcome", "not released"),
                verdict=info.tags.get(f"{TAG}verdict", ""),
                reason=info.tags.get(f"{TAG}reason", ""),
                release=info.tags.get(f"{TAG}release", ""),
                under_way=releasing.get(info.version),
            )
            for info in versions
        ),
    )
