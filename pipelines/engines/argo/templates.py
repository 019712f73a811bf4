"""The release pipeline as Argo WorkflowTemplates, built with Hera.

A pod runs `pipelines.engines.argo.pod STAGE+STAGE`, with `--NAME JSON` for each record that its stages take. It writes
their records to files, so the command can also be run by hand. Records are edges: a task depends on the tasks whose
records it takes. This module only decides scheduling. `pipelines.pods` decides which stages share a pod. What a stage
does, and whether it is a cache hit, is decided in the pod, with the same code as on the local engine.
"""

import json
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from hera.workflows import DAG, Container, Env, Parameter, Task, WorkflowTemplate
from hera.workflows import models as m

from shiplift.pipelines import pods
from shiplift.pipelines.engines.argo import shield
from shiplift.pipelines.engines.argo.layout import (
    ARTIFACTS_SECRET,
    CAPTURE_READER,
    CONFIG,
    CONFIG_MAP,
    DATA,
    EXECUTOR,
    HOME,
    LEDGER_SECRET,
    LIMITS,
    OUT,
    RECEIVER,
    REGISTRY_PUSH,
    REGISTRY_RELEASE,
    RELEASER,
    STEP,
    TARGETS,
    TUNER,
    dashed,
)
from shiplift.pipelines.engines.argo.template_settings import Size, TemplateSettings
from shiplift.pipelines.engines.argo.workflows import ERROR, LATE
from shiplift.pipelines.engines.interruption import GRACE_S
from shiplift.pipelines.graph import FanOut, Pipeline, Stage
from shiplift.pipelines.offline import PREDICT
from shiplift.pipelines.pods import Pod, hands_over
from shiplift.pipelines.release import HANDED_OVER, RELEASE, SINGLE
from shiplift.runtime.base import libyaml
from shiplift.runtime.base.errors import Cancelled, Temporary
from shiplift.runtime.capture.parts import READER
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.release import StageRuns
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.serving.kubernetes.connection import quantity
from shiplift.runtime.serving.kubernetes.objects.names import SANDBOX, STAGES, USER

_RETRIES = 8
_KILL_GRACE_S = 30  # from SIGTERM to SIGKILL
# Retry a lost pod, a temporary error, and a pod ended by a signal, unless it ran out of memory or time. A stage ends
# itself at its deadline and records why. If it can't, Kubernetes ends its pod a little later, with LATE in the message.
_RETRY_IF = (
    f"not (lastRetry.message contains '{LATE}') and (lastRetry.status == '{ERROR}' or asInt(lastRetry.exitCode) in "
    f"[{Temporary.exit_code}, {Cancelled.exit_code}, {128 + signal.SIGTERM}] or "
    f"(asInt(lastRetry.exitCode) == {128 + signal.SIGKILL} and not (lastRetry.message contains 'OOMKilled')))"
)
_STAGES = "stages"  # an input that names a pod's stages, if one of them may have to run in a pod of its own
_OF_RELEASE = (Site.parameter(), Request.parameter())  # the ledger needs these of a Workflow, whatever a stage takes
_RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def templates(settings: TemplateSettings) -> list[str]:
    """The WorkflowTemplates `release`, `conclude`, `git-push` and those of single stages, as YAML documents."""
    return [
        release(settings, RELEASE),
        predict(settings, PREDICT),
        *(single(settings, stage, *(name for name in stage.takes if name != Site.parameter())) for stage in SINGLE),
        conclude(settings, RELEASE),
        git_push(settings),
    ]


def release(settings: TemplateSettings, pipeline: Pipeline) -> str:
    """A pipeline as a WorkflowTemplate: a DAG whose pods retry temporary errors only; the last stage runs on exit."""
    inputs = [kind.parameter() for kind in pipeline.inputs if kind is not Site]
    last = pipeline.on_exit
    with _template(settings, pipeline.name, entrypoint="pipeline", inputs=[*inputs, "model"]) as template:
        template.synchronization = m.Synchronization(
            mutexes=[m.Mutex(name="shiplift-{{workflow.parameters.model}}")],
            semaphores=[m.SemaphoreRef(config_map_key_ref=m.ConfigMapKeySelector(name=LIMITS, key="releases"))],
        )
        tasks = pods.of(pipeline)
        built = _built(settings, tasks)
        if last is not None:
            _last(settings, last, workflow="{{workflow.name}}")
            template.on_exit = last.name
        _walked(pipeline, tasks, built)
    return _text(template)


def conclude(settings: TemplateSettings, pipeline: Pipeline) -> str:
    """The last stage alone, for a Workflow that was terminated before it could run its own."""
    inputs = [kind.parameter() for kind in pipeline.inputs if kind is not Site]
    assert pipeline.on_exit is not None  # noqa: S101 - RELEASE has one
    name = pipeline.on_exit.name
    with _template(settings, name, entrypoint=name, inputs=[*inputs, "release"]) as template:
        _last(settings, pipeline.on_exit, workflow="{{workflow.parameters.release}}")
    return _text(template)


def single(settings: TemplateSettings, stage: Stage, *inputs: str) -> str:
    """A stage as a WorkflowTemplate of its own."""
    with _template(settings, stage.name, entrypoint=stage.name, inputs=inputs) as template:
        template.synchronization = m.Synchronization(
            mutexes=[m.Mutex(name="shiplift-{{=sprig.sha256sum(workflow.parameters.model)}}")]
        )
        values = {name: f"{{{{workflow.parameters.{name}}}}}" for name in stage.takes}
        _container(settings, Pod(stage.name, (stage,)), values)
    return _text(template)


def predict(settings: TemplateSettings, pipeline: Pipeline) -> str:
    """The WorkflowTemplate for scoring a dataset: a pod plans, others score shares of it, one finishes.

    Orders with the same output run one after another.
    """
    inputs = [kind.parameter() for kind in pipeline.inputs if kind is not Site]
    with _template(settings, pipeline.name, entrypoint="pipeline", inputs=[*inputs, "output"]) as template:
        template.synchronization = m.Synchronization(
            mutexes=[m.Mutex(name="shiplift-predict-{{=sprig.sha256sum(workflow.parameters.output)}}")]
        )
        tasks = pods.of(pipeline)
        built = _built(settings, tasks, (Site.parameter(),))
        if settings.data_claim:
            claim = m.PersistentVolumeClaimVolumeSource(claim_name=settings.data_claim)
            template.volumes.append(m.Volume(name="data", persistent_volume_claim=claim))
            for each in template.templates:
                if isinstance(each, Container):
                    each.volume_mounts.append(m.VolumeMount(name="data", mount_path=DATA))
        _walked(pipeline, tasks, built)
    return _text(template)


def git_push(settings: TemplateSettings) -> str:
    """The WorkflowTemplate for a push: requests the releases of changed specs, and registers changed services.

    Pushes to a repository are handled one at a time, so that the same state of a service is not registered twice.
    """
    arguments = ["--config", f"{CONFIG}/config/config.json"]
    for name in ("repository", "before", "after"):
        arguments += [f"--{name}", f"{{{{workflow.parameters.{name}}}}}"]
    shape = _shape(settings, Size(cpu="100m", memory="512Mi"), deadline_s=1800, account=RECEIVER)
    mounts = [mount for mount in shape["volume_mounts"] if mount.name != "ledger"]  # signs nothing
    shape["env_from"] = _secrets(REGISTRY_PUSH, ARTIFACTS_SECRET)
    with _template(settings, "git-push", entrypoint="git-push", inputs=("repository", "before", "after")) as template:
        template.synchronization = m.Synchronization(
            mutexes=[m.Mutex(name="shiplift-push-{{=sprig.sha256sum(workflow.parameters.repository)}}")]
        )
        for number, secret in enumerate(settings.git_secrets):
            name = f"git-{number}"
            template.volumes.append(
                m.Volume(name=name, secret=m.SecretVolumeSource(secret_name=secret, default_mode=0o440))
            )
            mounts.append(m.VolumeMount(name=name, mount_path=f"{CONFIG}/git/{secret}", read_only=True))
        Container(
            name="git-push",
            **{**shape, "volume_mounts": mounts},
            labels={STAGES: "git-push"},
            command=["python", "-m", "shiplift.pipelines.triggers.git_push"],
            args=arguments,
        )
    return _text(template)


def _template(settings: TemplateSettings, name: str, *, entrypoint: str, inputs: Sequence[str]) -> WorkflowTemplate:
    parameters = [Parameter(name=parameter) for parameter in inputs]
    site = Parameter(name=Site.parameter(), value=settings.site.model_dump_json())
    patch = {
        "terminationGracePeriodSeconds": _KILL_GRACE_S,
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
            run_as_non_root=True,
            run_as_user=USER,
            run_as_group=USER,
            fs_group=USER,
            seccomp_profile=m.SeccompProfile(type="RuntimeDefault"),
        ),
        pod_spec_patch=json.dumps(patch),
        pod_gc=m.PodGC(strategy="OnPodCompletion", delete_delay_duration=f"{settings.keep_pods_s}s"),
        ttl_strategy=m.TTLStrategy(seconds_after_completion=settings.keep_s),
        volumes=_volumes(),
    )


def _volumes() -> list[m.Volume]:
    return [
        m.Volume(name="work", empty_dir=m.EmptyDirVolumeSource()),
        m.Volume(name="tmp", empty_dir=m.EmptyDirVolumeSource()),
        m.Volume(name="broker-work", empty_dir=m.EmptyDirVolumeSource()),
        m.Volume(name="broker-tmp", empty_dir=m.EmptyDirVolumeSource()),
        m.Volume(name="shm", empty_dir=m.EmptyDirVolumeSource(medium="Memory")),
        m.Volume(name="ledger", secret=m.SecretVolumeSource(secret_name=LEDGER_SECRET, default_mode=0o440)),
        m.Volume(name="targets", config_map=m.ConfigMapVolumeSource(name=TARGETS, optional=True)),
        m.Volume(name="config", config_map=m.ConfigMapVolumeSource(name=CONFIG_MAP, optional=True)),
    ]


def _shape(
    settings: TemplateSettings, size: Size, *, deadline_s: int, account: str = "", sandbox: bool = False
) -> dict[str, Any]:
    """The fields that all of Shiplift's containers share, as keyword arguments of `Container`.

    A sandboxed container gets neither the ledger's key nor credentials: its broker has them.
    """
    mounts = {
        "work": HOME,
        "tmp": "/tmp",  # noqa: S108 - the pod's own
        "shm": "/dev/shm",  # noqa: S108
        "targets": f"{CONFIG}/targets",
        "config": f"{CONFIG}/config",
    }
    if not sandbox:
        mounts["ledger"] = f"{CONFIG}/ledger"
    return {
        "image": settings.image,
        "image_pull_policy": settings.pull_policy,
        "env": [Env(name="HOME", value="/tmp"), Env(name="PYTHONUNBUFFERED", value="1")],  # noqa: S108
        "env_from": [] if sandbox else _secrets(REGISTRY_RELEASE, ARTIFACTS_SECRET),
        "resources": m.ResourceRequirements(
            requests={"cpu": size.cpu, "memory": size.memory}, limits={"memory": size.memory}
        ),
        "volume_mounts": _mounted(mounts),
        "security_context": _restricted(),
        **({"service_account_name": account, "automount_service_account_token": True} if account else {}),
        "active_deadline_seconds": deadline_s + GRACE_S,
        "retry_strategy": m.RetryStrategy(
            limit=str(_RETRIES),
            retry_policy="Always",
            expression=_RETRY_IF,
            backoff=m.Backoff(duration="5", factor="2", cap="60"),
        ),
    }


def _size(settings: TemplateSettings, pod: Pod) -> Size:
    """The largest request among a pod's stages, not their sum: they run one after another."""
    sizes = [settings.sizes.get(stage.name, Size(cpu=stage.at.cpu, memory=stage.at.memory)) for stage in pod.all_stages]
    return Size(
        cpu=max((size.cpu for size in sizes), key=quantity), memory=max((size.memory for size in sizes), key=quantity)
    )


def _secrets(*names: str) -> list[m.EnvFromSource]:
    return [m.EnvFromSource(secret_ref=m.SecretEnvSource(name=name, optional=True)) for name in names]


def _mounted(mounts: Mapping[str, str]) -> list[m.VolumeMount]:
    return [m.VolumeMount(name=volume, mount_path=path) for volume, path in mounts.items()]


def _restricted() -> m.SecurityContext:
    return m.SecurityContext(
        allow_privilege_escalation=False, read_only_root_filesystem=True, capabilities=m.Capabilities(drop=["ALL"])
    )


def _broker(settings: TemplateSettings, pod: Pod, arguments: list[str]) -> m.UserContainer:
    """The container that holds the secrets for stages that handle an author's files: `pipelines.engines.argo.broker`.

    It has volumes of its own, because what the stages write into theirs is not trusted.
    """
    mounts = {
        "broker-work": HOME,
        "broker-tmp": "/tmp",  # noqa: S108 - the pod's own
        "ledger": f"{CONFIG}/ledger",
        "targets": f"{CONFIG}/targets",
    }
    return m.UserContainer(
        name="broker",
        image=settings.image,
        image_pull_policy=settings.pull_policy,
        command=["python", "-m", "shiplift.pipelines.engines.argo.broker.server"],
        args=arguments,
        env=[
            m.EnvVar(name="HOME", value="/tmp"),  # noqa: S108
            m.EnvVar(name="PYTHONUNBUFFERED", value="1"),
            *_reads_captured(settings, pod),
        ],
        env_from=_secrets(REGISTRY_RELEASE, ARTIFACTS_SECRET),
        resources=m.ResourceRequirements(requests={"cpu": "50m", "memory": "256Mi"}, limits={"memory": "1Gi"}),
        volume_mounts=_mounted(mounts),
        security_context=_restricted(),
    )


def _reads_captured(settings: TemplateSettings, pod: Pod) -> list[m.EnvVar]:
    """The token with which the broker of an admission reads what was captured, if the cluster keeps that."""
    place = settings.site.place
    if not (isinstance(place, Cluster) and place.capture_uri and any(stage.name == "admit" for stage in pod.stages)):
        return []
    key = m.SecretKeySelector(name=CAPTURE_READER, key=READER, optional=True)
    return [m.EnvVar(name=READER, value_from=m.EnvVarSource(secret_key_ref=key))]


def _container(
    settings: TemplateSettings, pod: Pod, values: Mapping[str, str], *more: str, inputs: Sequence[str] = ()
) -> Container:
    arguments = [word for name, value in values.items() for word in (f"--{name}", value)]
    stages = f"{{{{inputs.parameters.{_STAGES}}}}}" if _STAGES in inputs else pod.words
    words = [stages, "--out", OUT, *more, *arguments]
    at = pod.stages[0].at
    names = [*pod.leaves, StageRuns.parameter(), Failure.parameter()]
    return Container(
        name=dashed(pod.name),
        **_shape(settings, _size(settings, pod), deadline_s=pod.deadline_s, account=_account(pod), sandbox=at.sandbox),
        labels={STAGES: ".".join(stage.name for stage in pod.all_stages), **({SANDBOX: "true"} if at.sandbox else {})},
        command=["python", "-m", "shiplift.pipelines.engines.argo.pod"],
        args=[*words, "--broker", "here"] if at.sandbox else words,
        sidecars=[_broker(settings, pod, words)] if at.sandbox else None,
        inputs=[Parameter(name=name) for name in inputs],
        outputs=[Parameter(name=name, value_from=m.ValueFrom(path=f"{OUT}/{name}.json", default="")) for name in names],
        pod_spec_patch=_on_target(settings, pod) if at.on_target and not _measures_elsewhere(pod) else None,
    )


def _account(pod: Pod) -> str:
    """The service account whose token a pod gets; empty: none."""
    if _measures_elsewhere(pod):
        return TUNER
    return RELEASER if pod.stages[0].at.cluster else ""


def _measures_elsewhere(pod: Pod) -> bool:
    """Whether this pod only creates another pod, on the target, to measure in. It can then run on any node."""
    return len(pod.stages) == 1 and pod.stages[0].at.bench


def _pod(settings: TemplateSettings, pod: Pod, *more: str, given: Sequence[str] = _OF_RELEASE) -> Container:
    values = {name: f"{{{{inputs.parameters.{name}}}}}" for name in pod.takes}
    workflow = {name: f"{{{{workflow.parameters.{name}}}}}" for name in given}
    met = pod.met or any(hands_over(stage, HANDED_OVER) for stage in pod.stages)
    marks = ["--attempt", "{{workflow.uid}}"] if met else []
    marks += ["--workflow", "{{workflow.name}}"] if shield.among(pod.stages) else []
    return _container(settings, pod, workflow | values, *marks, inputs=[*pod.takes, *more])


def _last(settings: TemplateSettings, stage: Stage, *, workflow: str) -> Container:
    values = {name: f"{{{{workflow.parameters.{name}}}}}" for name in stage.takes if name != "ending"}
    return _container(settings, Pod(stage.name, (stage,)), values, "--workflow", workflow)


def _on_target(settings: TemplateSettings, pod: Pod) -> str:
    """The pod spec patch for a target: its node selector and tolerations and, for NVIDIA, a GPU and its image.

    The target is known only when the Workflow runs, so Argo evaluates these expressions.
    """
    at = "jsonpath(inputs.parameters.target, '$.{}')"
    nvidia = f"{at.format('accelerator')} == 'nvidia'"
    gpu = f"{nvidia} ? '{{\"nvidia.com/gpu\": \"1\"}}' : '{{}}'"
    image = ""
    if settings.gpu_image and any(stage.at.gpu_tools for stage in pod.stages):
        choice = f"{nvidia} ? '{settings.gpu_image}' : '{settings.image}'"
        image = f'"image": {{{{=toJson({choice})}}}}, '
    return (
        f'{{"nodeSelector": {{{{=toJson({at.format("node_selector")})}}}}, '
        f'"tolerations": {{{{=toJson({at.format("tolerations")})}}}}, '
        f'"containers": [{{"name": "main", {image}"resources": {{"limits": {{{{={gpu}}}}}}}}}]}}'
    )


def _built(
    settings: TemplateSettings, tasks: Sequence[Pod | FanOut], given: Sequence[str] = _OF_RELEASE
) -> dict[str, Container | DAG]:
    """The template of each task, by name."""
    return {
        task.name: _fan_out(settings, task, given) if isinstance(task, FanOut) else _pod(settings, task, given=given)
        for task in tasks
    }


def _walked(pipeline: Pipeline, tasks: Sequence[Pod | FanOut], built: Mapping[str, Container | DAG]) -> None:
    """The graph of a pipeline, which takes its inputs from the Workflow."""
    with DAG(name="pipeline"):
        _wire(
            tasks,
            built,
            {kind.parameter(): f"{{{{workflow.parameters.{kind.parameter()}}}}}" for kind in pipeline.inputs},
        )


def _fan_out(settings: TemplateSettings, fan_out: FanOut, given: Sequence[str] = _OF_RELEASE) -> DAG:
    """The pods for one item. It is passed by name and looked up here, so that Argo calls a node `each-target(0:cpu)`.

    If an earlier pod has continued with the item, the resulting record is an input, and no pod runs.
    """
    output, item = fan_out.gives.parameter(), fan_out.item.parameter()
    inputs = [*fan_out.takes, fan_out.source, "item", *([output] if fan_out.within else [])]
    values = {name: f"{{{{inputs.parameters.{name}}}}}" for name in inputs}
    selected = (
        f"filter(jsonpath(inputs.parameters.{fan_out.source}, '$.{fan_out.attribute}'), "
        "{#.name == inputs.parameters.item})"
    )
    *others, last = pods.inside(fan_out)
    apart = last.without_bench()
    tasks = [*others, last, *([apart[1]] if apart else [])]
    built = {pod.name: _pod(settings, pod, *([_STAGES] if apart and pod is last else []), given=given) for pod in tasks}
    with DAG(
        name=dashed(fan_out.name),
        inputs=[Parameter(name=name) for name in dict.fromkeys(inputs)],
        outputs=[Parameter(name=output, value_from=_result(fan_out, last, apart))],
    ) as dag:
        wired = _wire(tasks, built, {**values, item: f"{{{{=toJson({selected}[0])}}}}"})
        if fan_out.within:
            for task in wired.values():
                task.when = f"{{{{=inputs.parameters.{output} == ''}}}}"
        if apart:
            _set_apart(wired, last, *apart, elsewhere=f"{selected}[0].server == 'nvidia'")
    return dag


def _set_apart(tasks: Mapping[str, Task], pod: Pod, rest: Pod, bench: Pod, *, elsewhere: str) -> None:
    """For a target that is measured `elsewhere`, the stage that measures has its own pod.

    It creates a pod to measure in, so it needs a token, which the stages that handle an author's files must not have.
    """
    stages = Parameter(name=_STAGES, value=f"{{{{={elsewhere} ? '{rest.words}' : '{pod.words}'}}}}")
    shared = tasks[pod.name]
    shared.arguments = [*shared.arguments, stages]
    tasks[bench.name].when = f"{{{{={elsewhere}}}}}"


def _result(fan_out: FanOut, last: Pod, apart: tuple[Pod, Pod] | None) -> m.ValueFrom:
    """An item's last record, from whichever pod made it."""
    output = fan_out.gives.parameter()
    made = f"tasks.{dashed(last.name)}.outputs.parameters.{output}"
    places = [made, *([f"tasks.{dashed(apart[1].name)}.outputs.parameters.{output}"] if apart else [])]
    if fan_out.within:
        places.insert(0, f"inputs.parameters.{output}")
    if len(places) == 1:
        return m.ValueFrom(parameter=f"{{{{{made}}}}}")
    *others, last_place = places
    return m.ValueFrom(expression="".join(f"{place} != '' ? {place} : " for place in others) + last_place)


def _wire(
    nodes: Sequence[Pod | FanOut], built: Mapping[str, Container | DAG], source: dict[str, str]
) -> dict[str, Task]:
    """Adds a task per pod. `source` maps each record to the expression for its value; adds the records of each pod."""
    giver: dict[str, Task] = {}
    tasks: dict[str, Task] = {}
    for node in nodes:
        values = [Parameter(name=name, value=source[name]) for name in node.takes]
        items = None
        if isinstance(node, FanOut):
            where = source[node.source].removeprefix("{{").removesuffix("}}")
            items = f"{{{{=toJson(jsonpath({_bracketed(where)}, '$.{node.attribute}[*].name'))}}}}"
            if node.source not in node.takes:  # a stage inside may take it, too
                values.append(Parameter(name=node.source, value=source[node.source]))
            values.append(Parameter(name="item", value="{{item}}"))
            if node.within:
                output = node.gives.parameter()
                done = f"{{{{tasks.{dashed(node.within)}.outputs.parameters.{output}}}}}"
                values.append(Parameter(name=output, value=done))
        task = Task(name=dashed(node.name), template=built[node.name], arguments=values, with_param=items)
        tasks[node.name] = task
        needs = [*node.takes, *([node.source] if isinstance(node, FanOut) else [])]
        for earlier in {giver[name].name: giver[name] for name in needs if name in giver}.values():
            earlier >> task
        for name in (node.gives.parameter(),) if isinstance(node, FanOut) else node.provides:
            giver[name] = task
            source[name] = f"{{{{tasks.{task.name}.outputs.parameters.{name}}}}}"
    return tasks


def _bracketed(reference: str) -> str:
    """Makes `tasks.find-targets.outputs...` a valid expression, where a bare dash would be a minus sign."""
    head, name, *rest = reference.split(".")
    return f"{head}['{name}'].{'.'.join(rest)}" if "-" in name else reference


def _text(template: WorkflowTemplate) -> str:
    """As YAML, through libyaml: PyYAML's own dumper takes seconds for an installation."""
    return str(template.to_yaml(Dumper=libyaml.Readable))
