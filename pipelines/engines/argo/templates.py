"""Engine 2: the same pipeline as Argo WorkflowTemplates, built with Hera.

A stage is a pod that runs `pipelines.engines.argo.pod STAGE`, with `--NAME JSON` for each record it takes. It writes
its own record to a file, so the command can also be run by hand. Records are edges: a task depends on the tasks whose
records it takes. Only scheduling is decided here. What a stage does, and whether it is a cache hit, is decided in the
pod, as on engine 1.
"""

import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hera.workflows import DAG, Container, Env, Parameter, Task, WorkflowTemplate
from hera.workflows import models as m

from shiplift.pipelines.engines.argo.layout import (
    CONFIG,
    CONFIG_MAP,
    EXECUTOR,
    HOME,
    LEDGER_SECRET,
    LIMITS,
    OUT,
    RECEIVER,
    RELEASER,
    STEP,
    TARGETS,
    TUNER,
    dashed,
)
from shiplift.pipelines.engines.argo.workflows import ERROR
from shiplift.pipelines.graph import Each, Pipeline, Placement, Stage
from shiplift.pipelines.release import RELEASE, ROLLBACK
from shiplift.runtime.base.errors import Cancelled, Temporary
from shiplift.runtime.records.base import Sections
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.release import StageRun
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.kubernetes.objects.names import LABEL, USER

_RETRIES = 8
# A stage ends itself at its deadline and records why. If it can't, Kubernetes ends it later with SIGTERM, and it is
# retried.
_GRACE_S = 60
# Retried: a lost pod, a temporary error, and a pod ended by a signal, unless it ran out of memory.
_RETRY_IF = (
    f"lastRetry.status == '{ERROR}' or asInt(lastRetry.exitCode) in "
    f"[{Temporary.exit_code}, {Cancelled.exit_code}, {128 + signal.SIGTERM}] or "
    f"(asInt(lastRetry.exitCode) == {128 + signal.SIGKILL} and not (lastRetry.message contains 'OOMKilled'))"
)
_RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@dataclass(frozen=True, kw_only=True)
class Size:
    """The resources of a stage's pod: its CPU request, and its memory request and limit."""

    cpu: str
    memory: str


@dataclass(frozen=True, kw_only=True)
class TemplateSettings:
    """What the templates depend on. `sizes` overrides the resources of stages, by the stage's name.

    `modelopt_image` is the image of `modelopt` stages for NVIDIA targets; empty: `image`.
    """

    namespace: str
    image: str
    site: Site
    pull_policy: str = "IfNotPresent"
    sizes: Mapping[str, Size] = field(default_factory=dict)
    keep_s: int = 7 * 86400
    keep_pods_s: int = 300
    git_secrets: Sequence[str] = ()
    modelopt_image: str = ""


def templates(settings: TemplateSettings) -> list[str]:
    """The WorkflowTemplates `release`, `rollback`, `conclude` and `git-push`, as YAML documents."""
    return [
        release(settings, RELEASE), single(settings, ROLLBACK, "model"), conclude(settings, RELEASE), git_push(settings)
    ]  # fmt: skip


def release(settings: TemplateSettings, pipeline: Pipeline) -> str:
    """A pipeline as a WorkflowTemplate: a DAG whose pods retry temporary errors only; the last stage runs on exit."""
    inputs = [kind.parameter() for kind in pipeline.inputs if kind is not Site]
    last = pipeline.on_exit
    with _template(settings, pipeline.name, entrypoint="pipeline", inputs=[*inputs, "model"]) as template:
        template.synchronization = m.Synchronization(
            mutexes=[m.Mutex(name="shiplift-{{workflow.parameters.model}}")],
            semaphores=[m.SemaphoreRef(config_map_key_ref=m.ConfigMapKeySelector(name=LIMITS, key="releases"))],
        )
        built = {
            stage.name: _fan_out(settings, stage) if isinstance(stage, Each) else _pod(settings, stage)
            for stage in pipeline
        }
        if last is not None:
            _last(settings, last, workflow="{{workflow.name}}")
            template.on_exit = last.name
        with DAG(name="pipeline"):
            _wire(
                pipeline.stages, built,
                {kind.parameter(): f"{{{{workflow.parameters.{kind.parameter()}}}}}" for kind in pipeline.inputs},
            )  # fmt: skip
    return str(template.to_yaml())


def conclude(settings: TemplateSettings, pipeline: Pipeline) -> str:
    """The last stage alone, for a Workflow that was terminated before its own could run."""
    inputs = [kind.parameter() for kind in pipeline.inputs if kind is not Site]
    assert pipeline.on_exit is not None  # noqa: S101 - RELEASE has one
    name = pipeline.on_exit.name
    with _template(settings, name, entrypoint=name, inputs=[*inputs, "release"]) as template:
        _last(settings, pipeline.on_exit, workflow="{{workflow.parameters.release}}")
    return str(template.to_yaml())


def single(settings: TemplateSettings, stage: Stage, *inputs: str) -> str:
    """A stage as a WorkflowTemplate of its own."""
    with _template(settings, stage.name, entrypoint=stage.name, inputs=inputs) as template:
        template.synchronization = m.Synchronization(
            mutexes=[m.Mutex(name="shiplift-{{=sprig.sha256sum(workflow.parameters.model)}}")]
        )
        _container(settings, stage, {name: f"{{{{workflow.parameters.{name}}}}}" for name in stage.takes})
    return str(template.to_yaml())


def git_push(settings: TemplateSettings) -> str:
    """The WorkflowTemplate for a push to a repository of specs: reads the changed specs and requests their releases."""
    arguments = ["--config", f"{CONFIG}/config/config.json"]
    for name in ("repository", "before", "after"):
        arguments += [f"--{name}", f"{{{{workflow.parameters.{name}}}}}"]
    shape = _shape(settings, Placement(), "git-push", account=RECEIVER)
    mounts = [mount for mount in shape["volume_mounts"] if mount.name != "ledger"]  # it signs nothing
    with _template(settings, "git-push", entrypoint="git-push", inputs=("repository", "before", "after")) as template:
        for number, secret in enumerate(settings.git_secrets):
            name = f"git-{number}"
            template.volumes.append(
                m.Volume(name=name, secret=m.SecretVolumeSource(secret_name=secret, default_mode=0o440))
            )
            mounts.append(m.VolumeMount(name=name, mount_path=f"{CONFIG}/git/{secret}", read_only=True))
        Container(
            name="git-push",
            **{**shape, "volume_mounts": mounts},
            command=["python", "-m", "shiplift.pipelines.triggers.git_push"],
            args=arguments,
        )
    return str(template.to_yaml())


def _template(settings: TemplateSettings, name: str, *, entrypoint: str, inputs: Sequence[str]) -> WorkflowTemplate:
    parameters = [Parameter(name=parameter) for parameter in inputs]
    site = Parameter(name=Site.parameter(), value=settings.site.model_dump_json())
    patch = {
        "initContainers": [{"name": "init", "securityContext": _RESTRICTED}],
        "containers": [{"name": "wait", "securityContext": _RESTRICTED}],
    }
    return WorkflowTemplate(
        name=name,
        namespace=settings.namespace,
        labels={"app.kubernetes.io/managed-by": "shiplift", "app.kubernetes.io/part-of": "shiplift"},
        entrypoint=entrypoint,
        arguments=[*parameters, site],
        service_account_name=STEP,
        automount_service_account_token=False,
        executor=m.ExecutorConfig(service_account_name=EXECUTOR),
        security_context=m.PodSecurityContext(
            run_as_non_root=True, run_as_user=USER, run_as_group=USER, fs_group=USER,
            seccomp_profile=m.SeccompProfile(type="RuntimeDefault"),
        ),
        pod_spec_patch=json.dumps(patch),
        pod_gc=m.PodGC(strategy="OnPodCompletion", delete_delay_duration=f"{settings.keep_pods_s}s"),
        ttl_strategy=m.TTLStrategy(seconds_after_completion=settings.keep_s),
        volumes=_volumes(),
    )  # fmt: skip


def _volumes() -> list[m.Volume]:
    return [
        m.Volume(name="work", empty_dir=m.EmptyDirVolumeSource()),
        m.Volume(name="tmp", empty_dir=m.EmptyDirVolumeSource()),
        m.Volume(name="shm", empty_dir=m.EmptyDirVolumeSource(medium="Memory")),
        m.Volume(name="ledger", secret=m.SecretVolumeSource(secret_name=LEDGER_SECRET, default_mode=0o440)),
        m.Volume(name="targets", config_map=m.ConfigMapVolumeSource(name=TARGETS, optional=True)),
        m.Volume(name="config", config_map=m.ConfigMapVolumeSource(name=CONFIG_MAP, optional=True)),
    ]


def _shape(settings: TemplateSettings, at: Placement, name: str, *, account: str = "") -> dict[str, Any]:
    """The fields common to all of Shiplift's containers, as keyword arguments of `Container`."""
    size = settings.sizes.get(name, Size(cpu=at.cpu, memory=at.memory))
    mounts = {"work": HOME, "tmp": "/tmp", "shm": "/dev/shm", "ledger": f"{CONFIG}/ledger",  # noqa: S108
              "targets": f"{CONFIG}/targets", "config": f"{CONFIG}/config"}  # fmt: skip
    service_account = account or (RELEASER if at.cluster else "")
    return {
        "image": settings.image,
        "image_pull_policy": settings.pull_policy,
        "env": [Env(name="HOME", value="/tmp"), Env(name="PYTHONUNBUFFERED", value="1")],  # noqa: S108
        "env_from": [
            m.EnvFromSource(secret_ref=m.SecretEnvSource(name=secret, optional=True))
            for secret in ("shiplift-registry", "shiplift-artifacts")
        ],
        "resources": m.ResourceRequirements(
            requests={"cpu": size.cpu, "memory": size.memory}, limits={"memory": size.memory}
        ),
        "volume_mounts": [m.VolumeMount(name=volume, mount_path=path) for volume, path in mounts.items()],
        "security_context": m.SecurityContext(
            allow_privilege_escalation=False, read_only_root_filesystem=True,
            capabilities=m.Capabilities(drop=["ALL"]),
        ),
        "labels": {f"{LABEL}stage": name, **({f"{LABEL}sandbox": "true"} if at.sandbox else {})},
        **(
            {"service_account_name": service_account, "automount_service_account_token": True}
            if service_account
            else {}
        ),
        "active_deadline_seconds": at.deadline_s + _GRACE_S,
        "retry_strategy": m.RetryStrategy(
            limit=str(_RETRIES), retry_policy="Always", expression=_RETRY_IF,
            backoff=m.Backoff(duration="5", factor="2", cap="60"),
        ),
    }  # fmt: skip


def _container(
    settings: TemplateSettings, stage: Stage, values: Mapping[str, str], *more: str, inputs: Sequence[str] = ()
) -> Container:
    arguments = [word for name, value in values.items() for word in (f"--{name}", value)]
    names = [stage.gives.parameter(), StageRun.parameter(), Failure.parameter()]
    if issubclass(stage.gives, Sections):
        names += list(stage.gives.parts())
    return Container(
        name=dashed(stage.name),
        **_shape(settings, stage.at, stage.name),
        command=["python", "-m", "shiplift.pipelines.engines.argo.pod"],
        args=[stage.name, "--out", OUT, *more, *arguments],
        inputs=[Parameter(name=name) for name in inputs],
        outputs=[Parameter(name=name, value_from=m.ValueFrom(path=f"{OUT}/{name}.json", default="")) for name in names],
        pod_spec_patch=_on_target(settings, stage) if stage.at.on_target and "target" in inputs else None,
    )


def _pod(settings: TemplateSettings, stage: Stage) -> Container:
    values = {name: f"{{{{inputs.parameters.{name}}}}}" for name in stage.takes}
    release = {name: f"{{{{workflow.parameters.{name}}}}}" for name in ("site", "request")}  # for the ledger
    return _container(settings, stage, release | values, inputs=list(stage.takes))


def _last(settings: TemplateSettings, stage: Stage, *, workflow: str) -> Container:
    values = {name: f"{{{{workflow.parameters.{name}}}}}" for name in stage.takes if name != "ending"}
    return _container(settings, stage, values, "--workflow", workflow)


def _on_target(settings: TemplateSettings, stage: Stage) -> str:
    """The pod spec patch for a target: its node selector and tolerations, and for NVIDIA a GPU and modelopt's image."""
    at = "jsonpath(inputs.parameters.target, '$.{}')"
    if stage.at.bench:
        return _bench(at)
    nvidia = f"{at.format('accelerator')} == 'nvidia'"
    gpu = f"{nvidia} ? '{{\"nvidia.com/gpu\": \"1\"}}' : '{{}}'"
    image = ""
    if settings.modelopt_image and stage.at.modelopt:
        choice = f"{nvidia} ? '{settings.modelopt_image}' : '{settings.image}'"
        image = f'"image": {{{{=toJson({choice})}}}}, '
    return (
        f'{{"nodeSelector": {{{{=toJson({at.format("node_selector")})}}}}, '
        f'"tolerations": {{{{=toJson({at.format("tolerations")})}}}}, '
        f'"containers": [{{"name": "main", {image}"resources": {{"limits": {{{{={gpu}}}}}}}}}]}}'
    )


def _bench(at: str) -> str:
    """The patch for a stage that measures: the target's node or, to measure in a pod there, an account that may."""
    pod = f"{at.format('server')} == 'nvidia'"
    account = f"{pod} ? '{TUNER}' : '{STEP}'"
    selector, tolerations = (f"toJson({at.format(name)})" for name in ("node_selector", "tolerations"))
    return (
        f'{{"serviceAccountName": {{{{=toJson({account})}}}}, "automountServiceAccountToken": {{{{=toJson({pod})}}}}, '
        f"\"nodeSelector\": {{{{={pod} ? '{{}}' : {selector}}}}}, "
        f"\"tolerations\": {{{{={pod} ? '[]' : {tolerations}}}}}}}"
    )


def _fan_out(settings: TemplateSettings, each: Each) -> DAG:
    """The stages of an item. It is passed by name and selected here, so that a node is called `each-target(0:cpu)`."""
    built = {stage.name: _pod(settings, stage) for stage in each.stages}
    output, item = each.gives.parameter(), each.item.parameter()
    last = dashed(each.stages[-1].name)
    inputs = [*each.takes, each.source, "item"]
    values = {name: f"{{{{inputs.parameters.{name}}}}}" for name in inputs}
    selected = (
        f"filter(jsonpath(inputs.parameters.{each.source}, '$.{each.attribute}'), {{#.name == inputs.parameters.item}})"
    )
    result = m.ValueFrom(parameter=f"{{{{tasks.{last}.outputs.parameters.{output}}}}}")
    with DAG(
        name=dashed(each.name),
        inputs=[Parameter(name=name) for name in dict.fromkeys(inputs)],
        outputs=[Parameter(name=output, value_from=result)],
    ) as dag:
        _wire(each.stages, built, {**values, item: f"{{{{=toJson({selected}[0])}}}}"})
    return dag


def _wire(stages: Sequence[Stage | Each], built: Mapping[str, Container | DAG], source: dict[str, str]) -> None:
    """Adds a task per stage. `source` maps each record to the expression of its value; each stage's record is added."""
    giver: dict[str, Task] = {}
    for stage in stages:
        values = [Parameter(name=name, value=source[name]) for name in stage.takes]
        items = None
        if isinstance(stage, Each):
            where = source[stage.source].removeprefix("{{").removesuffix("}}")
            items = f"{{{{=toJson(jsonpath({_bracketed(where)}, '$.{stage.attribute}[*].name'))}}}}"
            values += [
                Parameter(name=stage.source, value=source[stage.source]), Parameter(name="item", value="{{item}}")
            ]  # fmt: skip
        task = Task(name=dashed(stage.name), template=built[stage.name], arguments=values, with_param=items)
        needs = [*stage.takes, *([stage.source] if isinstance(stage, Each) else [])]
        for earlier in {giver[name].name: giver[name] for name in needs if name in giver}.values():
            earlier >> task
        outputs: list[str] = [stage.gives.parameter()]
        if isinstance(stage, Stage) and issubclass(stage.gives, Sections):
            outputs += list(stage.gives.parts())
        for name in outputs:
            giver[name] = task
            source[name] = f"{{{{tasks.{task.name}.outputs.parameters.{name}}}}}"


def _bracketed(reference: str) -> str:
    """`tasks.find-targets.outputs...` as an expression, in which a bare dash would be a minus sign."""
    head, name, *rest = reference.split(".")
    return f"{head}['{name}'].{'.'.join(rest)}" if "-" in name else reference
