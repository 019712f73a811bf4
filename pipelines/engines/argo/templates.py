"""Engine 2: the same pipeline as Argo WorkflowTemplates, built with Hera.

A stage is a pod that runs `pipelines.engines.argo.pod STAGE`, one `--NAME JSON` per record it takes; its record leaves
through a file, so the command can be typed by hand. Records are edges: a task depends on those that give what it takes.
Nothing but scheduling is decided here; what a stage does, and whether it is a cache hit, the pod decides as engine 1.
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
# A stage ends itself at its deadline, and says so. Kubernetes ends one that can't, by the signal for "try it again".
_GRACE_S = 60
# A lost pod; a temporary error; ended by a signal, unless that was for its memory.
_AGAIN = (
    f"lastRetry.status == '{ERROR}' or asInt(lastRetry.exitCode) in "
    f"[{Temporary.exit_code}, {Cancelled.exit_code}, {128 + signal.SIGTERM}] or "
    f"(asInt(lastRetry.exitCode) == {128 + signal.SIGKILL} and not (lastRetry.message contains 'OOMKilled'))"
)
_RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@dataclass(frozen=True, kw_only=True)
class Size:
    """What a stage's pod asks for and may use."""

    cpu: str
    memory: str


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A cluster as the templates need it. `sizes` overrides stages' own by name.

    `modelopt_image` is what `modelopt` stages run in for NVIDIA targets, where there is one.
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


def templates(setting: Setting) -> list[str]:
    """The WorkflowTemplates `release`, `rollback`, `conclude` and `git-push`, as YAML documents."""
    return [
        release(setting, RELEASE), single(setting, ROLLBACK, "model"), conclude(setting, RELEASE), git_push(setting)
    ]  # fmt: skip


def release(setting: Setting, pipeline: Pipeline) -> str:
    """A pipeline as a WorkflowTemplate: one DAG, pods retried for temporary errors alone, the last stage on exit."""
    asked = [kind.parameter() for kind in pipeline.inputs if kind is not Site]
    last = pipeline.on_exit
    with _template(setting, pipeline.name, entrypoint="pipeline", asked=[*asked, "model"]) as template:
        template.synchronization = m.Synchronization(
            mutexes=[m.Mutex(name="shiplift-{{workflow.parameters.model}}")],
            semaphores=[m.SemaphoreRef(config_map_key_ref=m.ConfigMapKeySelector(name=LIMITS, key="releases"))],
        )
        made = {
            stage.name: _fan(setting, stage) if isinstance(stage, Each) else _pod(setting, stage) for stage in pipeline
        }
        if last is not None:
            _last(setting, last, workflow="{{workflow.name}}")
            template.on_exit = last.name
        with DAG(name="pipeline"):
            _wire(
                pipeline.stages, made,
                {kind.parameter(): f"{{{{workflow.parameters.{kind.parameter()}}}}}" for kind in pipeline.inputs},
            )  # fmt: skip
    return str(template.to_yaml())


def conclude(setting: Setting, pipeline: Pipeline) -> str:
    """The last stage alone, for a Workflow that was terminated before it could run it."""
    asked = [kind.parameter() for kind in pipeline.inputs if kind is not Site]
    assert pipeline.on_exit is not None  # noqa: S101 - RELEASE has one
    with _template(setting, pipeline.on_exit.name, entrypoint=pipeline.on_exit.name, asked=[*asked, "release"]) as made:
        _last(setting, pipeline.on_exit, workflow="{{workflow.parameters.release}}")
    return str(made.to_yaml())


def single(setting: Setting, stage: Stage, *asked: str) -> str:
    """One stage as a WorkflowTemplate of its own."""
    with _template(setting, stage.name, entrypoint=stage.name, asked=asked) as template:
        template.synchronization = m.Synchronization(
            mutexes=[m.Mutex(name="shiplift-{{=sprig.sha256sum(workflow.parameters.model)}}")]
        )
        _container(setting, stage, {name: f"{{{{workflow.parameters.{name}}}}}" for name in stage.takes})
    return str(template.to_yaml())


def git_push(setting: Setting) -> str:
    """What a push to a repository of specs starts: it reads the specs that changed and orders their releases."""
    words = ["--config", f"{CONFIG}/config/config.json"]
    for name in ("repository", "before", "after"):
        words += [f"--{name}", f"{{{{workflow.parameters.{name}}}}}"]
    shape = _shape(setting, Placement(), "git-push", account=RECEIVER)
    kept = [mount for mount in shape["volume_mounts"] if mount.name != "ledger"]  # it signs nothing
    with _template(setting, "git-push", entrypoint="git-push", asked=("repository", "before", "after")) as template:
        for number, secret in enumerate(setting.git_secrets):
            name = f"git-{number}"
            template.volumes.append(
                m.Volume(name=name, secret=m.SecretVolumeSource(secret_name=secret, default_mode=0o440))
            )
            kept.append(m.VolumeMount(name=name, mount_path=f"{CONFIG}/git/{secret}", read_only=True))
        Container(
            name="git-push",
            **{**shape, "volume_mounts": kept},
            command=["python", "-m", "shiplift.pipelines.triggers.git_push"],
            args=words,
        )
    return str(template.to_yaml())


def _template(setting: Setting, name: str, *, entrypoint: str, asked: Sequence[str]) -> WorkflowTemplate:
    given = [Parameter(name=one) for one in asked]
    site = Parameter(name=Site.parameter(), value=setting.site.model_dump_json())
    patch = {
        "initContainers": [{"name": "init", "securityContext": _RESTRICTED}],
        "containers": [{"name": "wait", "securityContext": _RESTRICTED}],
    }
    return WorkflowTemplate(
        name=name,
        namespace=setting.namespace,
        labels={"app.kubernetes.io/managed-by": "shiplift", "app.kubernetes.io/part-of": "shiplift"},
        entrypoint=entrypoint,
        arguments=[*given, site],
        service_account_name=STEP,
        automount_service_account_token=False,
        executor=m.ExecutorConfig(service_account_name=EXECUTOR),
        security_context=m.PodSecurityContext(
            run_as_non_root=True, run_as_user=USER, run_as_group=USER, fs_group=USER,
            seccomp_profile=m.SeccompProfile(type="RuntimeDefault"),
        ),
        pod_spec_patch=json.dumps(patch),
        pod_gc=m.PodGC(strategy="OnPodCompletion", delete_delay_duration=f"{setting.keep_pods_s}s"),
        ttl_strategy=m.TTLStrategy(seconds_after_completion=setting.keep_s),
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


def _shape(setting: Setting, at: Placement, name: str, *, account: str = "") -> dict[str, Any]:
    """What every container of ours is given."""
    size = setting.sizes.get(name, Size(cpu=at.cpu, memory=at.memory))
    mounts = {"work": HOME, "tmp": "/tmp", "shm": "/dev/shm", "ledger": f"{CONFIG}/ledger",  # noqa: S108
              "targets": f"{CONFIG}/targets", "config": f"{CONFIG}/config"}  # fmt: skip
    who = account or (RELEASER if at.cluster else "")
    return {
        "image": setting.image,
        "image_pull_policy": setting.pull_policy,
        "env": [Env(name="HOME", value="/tmp"), Env(name="PYTHONUNBUFFERED", value="1")],  # noqa: S108
        "env_from": [
            m.EnvFromSource(secret_ref=m.SecretEnvSource(name=secret, optional=True))
            for secret in ("shiplift-registry", "shiplift-artifacts")
        ],
        "resources": m.ResourceRequirements(
            requests={"cpu": size.cpu, "memory": size.memory}, limits={"memory": size.memory}
        ),
        "volume_mounts": [m.VolumeMount(name=one, mount_path=path) for one, path in mounts.items()],
        "security_context": m.SecurityContext(
            allow_privilege_escalation=False, read_only_root_filesystem=True,
            capabilities=m.Capabilities(drop=["ALL"]),
        ),
        "labels": {f"{LABEL}stage": name, **({f"{LABEL}sandbox": "true"} if at.sandbox else {})},
        **({"service_account_name": who, "automount_service_account_token": True} if who else {}),
        "active_deadline_seconds": at.deadline_s + _GRACE_S,
        "retry_strategy": m.RetryStrategy(
            limit=str(_RETRIES), retry_policy="Always", expression=_AGAIN,
            backoff=m.Backoff(duration="5", factor="2", cap="60"),
        ),
    }  # fmt: skip


def _container(
    setting: Setting, stage: Stage, values: Mapping[str, str], *more: str, inputs: Sequence[str] = ()
) -> Container:
    words = [word for name, value in values.items() for word in (f"--{name}", value)]
    names = [stage.gives.parameter(), StageRun.parameter(), Failure.parameter()]
    if issubclass(stage.gives, Sections):
        names += list(stage.gives.parts())
    return Container(
        name=dashed(stage.name),
        **_shape(setting, stage.at, stage.name),
        command=["python", "-m", "shiplift.pipelines.engines.argo.pod"],
        args=[stage.name, "--out", OUT, *more, *words],
        inputs=[Parameter(name=name) for name in inputs],
        outputs=[Parameter(name=name, value_from=m.ValueFrom(path=f"{OUT}/{name}.json", default="")) for name in names],
        pod_spec_patch=_on_target(setting, stage) if stage.at.on_target and "target" in inputs else None,
    )


def _pod(setting: Setting, stage: Stage) -> Container:
    values = {name: f"{{{{inputs.parameters.{name}}}}}" for name in stage.takes}
    release = {name: f"{{{{workflow.parameters.{name}}}}}" for name in ("site", "request")}  # for the ledger
    return _container(setting, stage, release | values, inputs=list(stage.takes))


def _last(setting: Setting, stage: Stage, *, workflow: str) -> Container:
    values = {name: f"{{{{workflow.parameters.{name}}}}}" for name in stage.takes if name != "ending"}
    return _container(setting, stage, values, "--workflow", workflow)


def _on_target(setting: Setting, stage: Stage) -> str:
    """The node that a target asks for: its labels, what it tolerates, and a GPU, and its tools, where it has one."""
    at = "jsonpath(inputs.parameters.target, '$.{}')"
    if stage.at.bench:
        return _beside_bench(at)
    nvidia = f"{at.format('accelerator')} == 'nvidia'"
    gpu = f"{nvidia} ? '{{\"nvidia.com/gpu\": \"1\"}}' : '{{}}'"
    image = ""
    if setting.modelopt_image and stage.at.modelopt:
        chosen = f"{nvidia} ? '{setting.modelopt_image}' : '{setting.image}'"
        image = f'"image": {{{{=toJson({chosen})}}}}, '
    return (
        f'{{"nodeSelector": {{{{=toJson({at.format("node_selector")})}}}}, '
        f'"tolerations": {{{{=toJson({at.format("tolerations")})}}}}, '
        f'"containers": [{{"name": "main", {image}"resources": {{"limits": {{{{={gpu}}}}}}}}}]}}'
    )


def _beside_bench(at: str) -> str:
    """The target's node, or, where a pod there is measured, any node, with the right to make that pod."""
    pod = f"{at.format('server')} == 'nvidia'"
    account = f"{pod} ? '{TUNER}' : '{STEP}'"
    selector, tolerations = (f"toJson({at.format(name)})" for name in ("node_selector", "tolerations"))
    return (
        f'{{"serviceAccountName": {{{{=toJson({account})}}}}, "automountServiceAccountToken": {{{{=toJson({pod})}}}}, '
        f"\"nodeSelector\": {{{{={pod} ? '{{}}' : {selector}}}}}, "
        f"\"tolerations\": {{{{={pod} ? '[]' : {tolerations}}}}}}}"
    )


def _fan(setting: Setting, each: Each) -> DAG:
    """The stages of one item, which is found by its name: so a node is called `each-target(0:cpu)`."""
    made = {stage.name: _pod(setting, stage) for stage in each.stages}
    given, item = each.gives.parameter(), each.item.parameter()
    last = dashed(each.stages[-1].name)
    inputs = [*each.takes, each.source, "item"]
    values = {name: f"{{{{inputs.parameters.{name}}}}}" for name in inputs}
    found = (
        f"filter(jsonpath(inputs.parameters.{each.source}, '$.{each.attribute}'), {{#.name == inputs.parameters.item}})"
    )
    result = m.ValueFrom(parameter=f"{{{{tasks.{last}.outputs.parameters.{given}}}}}")
    with DAG(
        name=dashed(each.name),
        inputs=[Parameter(name=name) for name in dict.fromkeys(inputs)],
        outputs=[Parameter(name=given, value_from=result)],
    ) as dag:
        _wire(each.stages, made, {**values, item: f"{{{{=toJson({found}[0])}}}}"})
    return dag


def _wire(stages: Sequence[Stage | Each], made: Mapping[str, Container | DAG], source: dict[str, str]) -> None:
    """One task a stage; `source` says where each record comes from, and learns what each stage gives."""
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
        task = Task(name=dashed(stage.name), template=made[stage.name], arguments=values, with_param=items)
        needs = [*stage.takes, *([stage.source] if isinstance(stage, Each) else [])]
        for needed in {giver[name].name: giver[name] for name in needs if name in giver}.values():
            needed >> task
        gives: list[str] = [stage.gives.parameter()]
        if isinstance(stage, Stage) and issubclass(stage.gives, Sections):
            gives += list(stage.gives.parts())
        for name in gives:
            giver[name] = task
            source[name] = f"{{{{tasks.{task.name}.outputs.parameters.{name}}}}}"


def _bracketed(reference: str) -> str:
    """`tasks.find-targets.outputs...` as an expression, where a dash would be a minus."""
    head, name, *rest = reference.split(".")
    return f"{head}['{name}'].{'.'.join(rest)}" if "-" in name else reference
