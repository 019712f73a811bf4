"""A pod's command line: which stages run there, and the records that they take from elsewhere.

    deploy+gate --out DIR --slo '{...}' --load_report '{...}' ...

The container that runs the stages and the broker beside it get the same one.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shiplift.pipelines.engines.argo.layout import CONFIG
from shiplift.pipelines.engines.argo.pod.parameters import resolved
from shiplift.pipelines.engines.attempt import ResultCache
from shiplift.pipelines.graph import FanOut, Pipeline, Stage, load
from shiplift.pipelines.offline import PREDICT
from shiplift.pipelines.pods import Pod
from shiplift.pipelines.release import RELEASE, SINGLE
from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.records.release import Ending
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.store.broker import Broker, brokered, is_brokered
from shiplift.runtime.store.ledger import Ledger


@dataclass(frozen=True, kw_only=True)
class Call:
    """Stages and the arguments that come from outside their pod, as a command line passes them.

    `workflow` names the Workflow that the last stage concludes, and on which a shielded stage reports its progress.
    `attempt` identifies the run of the Workflow that this pod belongs to, for records handed over between pods.
    `pipeline` is the pipeline that the stages belong to.
    """

    stages: tuple[Stage, ...]
    out: Path
    arguments: dict[str, Any]
    workflow: str = ""
    attempt: str = ""
    broker: Broker | None = None
    then: FanOut | None = None
    pipeline: Pipeline = RELEASE

    @property
    def site(self) -> Site | None:
        """The site; None if it was not passed."""
        site = self.arguments.get(Site.parameter())
        return site if isinstance(site, Site) else None

    @property
    def api(self) -> KubernetesClient:
        """The cluster's API.

        Raises:
            UsageError: the site is not on a cluster.
        """
        if self.site is None or not isinstance(self.site.place, Cluster):
            raise UsageError(
                "the site is not on a cluster, so it has no Workflows",
                do="Pass --site with a `place` of kind `cluster`.",
            )
        return KubernetesClient(self.site.place.namespace)

    @property
    def pod(self) -> Pod:
        """The stages, and the fan-out that they may continue with, as a pod."""
        return Pod("", self.stages, self.then)

    @property
    def cache(self) -> ResultCache | None:
        """The release's ledger, or the broker that stands for it; None if the stages don't belong to a release."""
        if self.broker is not None:
            return self.broker
        request = self.arguments.get(Request.parameter())
        return Ledger(self.site, request) if self.site and request else None


def parse(words: Sequence[str], pipeline: Pipeline = RELEASE) -> Call:
    """Reads a command line that names stages of a pipeline.

    Raises:
        UsageError: a stage does not exist, or a record is missing or invalid.
        ArtifactCorrupt: a stored record is gone or was changed.
    """
    word = words[0] if words else ""
    pod = _pod(word, pipeline)
    pairs = dict(zip((word.removeprefix("--") for word in words[1::2]), words[2::2], strict=False))
    try:
        site = _site(pairs)
        arguments = {
            name: pairs[name] if kind is str else load(kind, resolved(json.loads(pairs[name]), site))
            for name, kind in pod.takes.items()
            if kind is not Ending
        }
        # The ledger needs these to identify the release, even if no stage takes them.
        if Request.parameter() in pairs:
            arguments[Request.parameter()] = load(Request, json.loads(pairs[Request.parameter()]))
        arguments |= {Site.parameter(): site} if site else {}
        return Call(
            stages=pod.stages,
            then=pod.then,
            out=Path(pairs["out"]),
            arguments=arguments,
            workflow=pairs.get("workflow", ""),
            attempt=pairs.get("attempt", ""),
            pipeline=pipeline,
            broker=Broker(site.registry_uri) if site and is_brokered(site.registry_uri) else None,
        )
    except KeyError as error:
        raise UsageError(f"{word} needs --{error.args[0]}", do="Pass each record it takes as JSON.") from error
    except ValueError as error:
        raise UsageError(f"{word}: {' '.join(str(error).split())[:1000]}", do="Fix that record.") from error


def _pod(word: str, pipeline: Pipeline) -> Pod:
    every = (*pipeline.flat(), *PREDICT.flat(), *SINGLE, pipeline.on_exit)
    known = {stage.name: stage for stage in every if stage is not None}
    names = word.split("+")
    fan_outs = {node.name: node for node in pipeline if isinstance(node, FanOut)}
    then = fan_outs.get(names[-1]) if names[1:] else None
    names = names[:-1] if then else names
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"there is no stage {unknown[0]!r}", do=f"Stages are: {', '.join(known)}.")
    return Pod(word, tuple(known[name] for name in names), then)


def _site(pairs: Mapping[str, str]) -> Site | None:
    """The site. With `--broker`, the registry and the store are the broker, which has the credentials."""
    if Site.parameter() not in pairs:
        return None
    site = Site.model_validate(json.loads(pairs[Site.parameter()]))
    return brokered(site) if "broker" in pairs else site


def handover(attempt: str, stage: Stage) -> str:
    """The ledger's key for a record that one pod hands over to another pod of the same Workflow."""
    return hashlib.sha256(f"{stage.name} of {attempt}".encode()).hexdigest()


def link_mounts(site: Site) -> None:
    """Links the mounted secrets and catalogue into the pod's home, which starts empty."""
    home = Path(site.home)
    home.mkdir(parents=True, exist_ok=True)
    for mounted in (Path(CONFIG) / "ledger" / "secrets.json", Path(CONFIG) / "targets" / "targets.yaml"):
        if mounted.is_file() and not (home / mounted.name).exists():
            (home / mounted.name).symlink_to(mounted)
