"""A client of Triton's gRPC API, as far as steps need it: load, unload, infer, count. Errors quote Triton's."""

import secrets
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import grpc
import numpy as np
import tritonclient.grpc as triton
from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from shiplift.runtime.base.errors import GoldenMismatch, ServerFailed, Temporary
from shiplift.runtime.base.names import TENSORS, serving_name
from shiplift.runtime.model.generation.signature import PROMPT_TOKENS, TEXT
from shiplift.runtime.model.tensors import (
    EARLIER,
    GOLDEN_SAMPLES,
    GRAPH,
    MEMBER,
    Arrays,
    concatenate,
    filled,
    first_requests,
    inputs_in,
    one_by_one,
    text_of,
    under,
)
from shiplift.runtime.model.text.comparing import text_difference
from shiplift.runtime.records.kinds.package import Package, PipelinePackage
from shiplift.runtime.records.measurement import Counts, Timings
from shiplift.runtime.records.precision import Precision
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.serving import streaming

_LOAD_S = 300
_CALL_S = 60
_BEGINNING = 3  # characters of a generated answer
_RERUN = "Rerun the release; if it happens again, the serving ONNX Runtime computes the model differently."
# Relative to the largest output. The same file gives the same float outputs up to rounding, which is coarser in half
# precision. In int8, another batch size may make a kernel round a half the other way, by one step of 255.
TOLERANCE: dict[Precision, float] = {"fp64": 1e-5, "fp32": 1e-3, "fp16": 1e-2, "bf16": 5e-2, "int8": 5e-2, "fp8": 1e-1}


@dataclass(frozen=True, kw_only=True)
class SequenceStep:
    """A request's place in a sequence, in Triton's terms; an id of 0 means no sequence."""

    sequence_id: int = 0
    sequence_start: bool = False
    sequence_end: bool = False


ALONE = SequenceStep()
OWN_REQUESTS = "shiplift-check"  # the id of golden requests and probes, which `backends/capture` leaves out


def steps_of(count: int) -> list[SequenceStep]:
    """The steps of a new sequence of `count` requests, with a random id that no other client uses."""
    sequence = secrets.randbelow(2**62) + 1
    return [
        SequenceStep(sequence_id=sequence, sequence_start=at == 0, sequence_end=at == count - 1) for at in range(count)
    ]


def key_header(repository_key: str) -> dict[str, str]:
    """The metadata of a call that unlocks the model-repository API; none without a key."""
    return {"triton-grpc-protocol-shiplift": repository_key} if repository_key else {}


class TritonClient:
    """A client of one server at `host:port` (gRPC)."""

    def __init__(
        self,
        address: str,
        *,
        authority: str = "",
        secure: bool = False,
        repository_key: str = "",
        timeout_s: float = _CALL_S,
        request_id: str = "",
    ) -> None:
        """`authority` names the host behind a shared address, which a gateway's routes match. `secure`: over TLS.

        `repository_key` unlocks the model-repository API of a server that was started with such a key. `timeout_s` is
        for each inference and each reading of counters. `request_id` is that of every inference.
        """
        self.address = address
        self._timeout_s = timeout_s
        self._key = key_header(repository_key)
        # gRPC lets clients of one address share a connection, and then also the pause after it could not be made.
        options: list[tuple[str, str | int]] = [("grpc.use_local_subchannel_pool", 1)]
        options += [("grpc.default_authority", authority)] if authority else []
        self._options, self._secure, self._request_id = options, secure, request_id
        self.sent: Counter[str] = Counter()  # the requests to each model
        self._client = triton.InferenceServerClient(address, ssl=secure, channel_args=options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def live(self) -> bool:
        """Whether the server answers at all."""
        try:
            return bool(self._client.is_server_live(client_timeout=2))
        except InferenceServerException:
            return False

    def ready(self, model: str, version: int | None = None) -> bool:
        """Whether a model, or that version of it, takes requests."""
        try:
            return bool(self._client.is_model_ready(model, str(version or ""), client_timeout=5))
        except InferenceServerException:
            return False

    def versions(self, model: str) -> list[int]:
        """The versions of a model that take requests."""
        with self._translated(model):
            index = self._client.get_model_repository_index(headers=self._key, client_timeout=_CALL_S).models
        return [int(m.version) for m in index if m.name == model and m.state == "READY" and m.version]

    def loaded(self) -> dict[str, list[int]]:
        """Every model that takes requests, with its versions."""
        with self._translated("the server"):
            index = self._client.get_model_repository_index(headers=self._key, client_timeout=_CALL_S).models
        versions: dict[str, list[int]] = {}
        for model in index:
            if model.state == "READY" and model.version:
                versions.setdefault(model.name, []).append(int(model.version))
        return versions

    def states(self) -> dict[str, set[str]]:
        """Every model of the repository that was ever loaded, with the states of its versions, such as `READY`."""
        with self._translated("the server"):
            index = self._client.get_model_repository_index(headers=self._key, client_timeout=_CALL_S).models
        states: dict[str, set[str]] = {}
        for model in index:
            states.setdefault(model.name, set()).add(model.state)
        return states

    def load(
        self, model: str, config: model_config_pb2.ModelConfig | None = None, *, timeout_s: float = _LOAD_S
    ) -> float:
        """Loads a model of the repository, or reloads it in place; returns the seconds it took.

        A reload is atomic: the old version answers until the new one is warmed up, and stays if that fails. A `config`
        replaces the model's config.pbtxt.

        Raises:
            ServerFailed: Triton can't load it.
        """
        started = time.monotonic()
        override = json_format.MessageToJson(config, preserving_proto_field_name=True) if config else None
        with self._translated(model):
            self._client.load_model(model, headers=self._key, config=override, client_timeout=timeout_s)
        return time.monotonic() - started

    def unload(self, model: str) -> None:
        """Unloads a model if it is loaded, and waits until it is gone."""
        with self._translated(model):
            self._client.unload_model(model, headers=self._key, client_timeout=_CALL_S)
        deadline = time.monotonic() + _CALL_S
        while self.versions(model) and time.monotonic() < deadline:
            time.sleep(0.02)

    def config(self, model: str) -> model_config_pb2.ModelConfig:
        """The configuration of a loaded model, including what Triton filled in."""
        with self._translated(model):
            return self._client.get_model_config(model, client_timeout=_CALL_S).config

    def signature(self, model: str) -> Signature:
        """A model's tensors, according to the server."""
        with self._translated(model):
            metadata = self._client.get_model_metadata(model, client_timeout=_CALL_S)
            config = self._client.get_model_config(model, client_timeout=_CALL_S).config
        optional = {entry.name for entry in config.input if entry.optional}
        return Signature(
            inputs=_specs(metadata.inputs, optional),
            outputs=_specs(metadata.outputs),
            streamed=config.model_transaction_policy.decoupled,
        )

    def infer(
        self,
        model: str,
        signature: Signature,
        inputs: Arrays,
        *,
        version: int | None = None,
        step: SequenceStep = ALONE,
    ) -> Arrays:
        """The outputs of one request, by name; the pieces of a streamed answer are put together.

        Raises:
            ServerFailed: Triton refuses or fails the request.
        """
        self.sent[model] += 1
        with self._translated(model):
            if signature.streamed:
                return self._streamed(model, signature, inputs, version)
            tensors = [_input(spec.name, spec.datatype, inputs[spec.name]) for spec in given(signature, inputs)]
            result = self._client.infer(
                model,
                tensors,
                model_version=str(version or ""),
                request_id=self._request_id,
                client_timeout=self._timeout_s,
                **vars(step),
            )
        return {spec.name: result.as_numpy(spec.name) for spec in signature.outputs}

    def _streamed(self, model: str, signature: Signature, inputs: Arrays, version: int | None) -> Arrays:
        request = streaming.request_of(model, signature, inputs, version)
        with streaming.connected(self.address, self._options, secure=self._secure) as service:
            return streaming.whole(signature, streaming.pieces(service, request, signature, self._timeout_s))

    def answering_version(self, package: Package, inputs: Arrays) -> int:
        """The version that answers a request that names none; raises Triton's own exception if the request fails."""
        if package.signature.streamed:
            request = streaming.request_of(serving_name(package.model), package.signature, inputs)
            with streaming.connected(self.address, self._options, secure=self._secure) as service:
                return streaming.answering_version(service, request, self._timeout_s)
        tensors = [_input(spec.name, spec.datatype, inputs[spec.name]) for spec in given(package.signature, inputs)]
        (step,) = steps_of(1) if package.stateful else (ALONE,)
        name, timeout_s = serving_name(package.model), self._timeout_s
        result = self._client.infer(name, tensors, request_id=self._request_id, client_timeout=timeout_s, **vars(step))
        return int(result.get_response().model_version)

    def default_version(self, model: str) -> int:
        """The version that answers a request that names none; 0 if none does. Anyone may ask.

        Raises:
            ServerFailed: the server does not know the model.
            Temporary: the server does not answer.
        """
        with self._translated(model):
            metadata = self._client.get_model_metadata(model, client_timeout=self._timeout_s)
        return max(map(int, metadata.versions), default=0)

    def failures(self, model: str) -> int:
        """How many of a model's requests have failed since it was loaded."""
        return self.counts(model).failed

    def counts(self, model: str) -> Counts:
        """The server's counters of a model's requests since it was loaded."""
        with self._translated(model):
            stats = self._client.get_inference_statistics(model, client_timeout=self._timeout_s).model_stats
        return Counts(
            answered=sum(int(entry.inference_stats.success.count) for entry in stats),
            failed=sum(int(entry.inference_stats.fail.count) for entry in stats),
        )

    def timings(self, model: str) -> Timings:
        """The server's counters of a model since it was loaded, summed over its versions."""
        with self._translated(model):
            stats = self._client.get_inference_statistics(model, client_timeout=self._timeout_s).model_stats
        computed = ("compute_input", "compute_infer", "compute_output")
        return Timings(
            requests=sum(int(each.inference_stats.success.count) for each in stats),
            executions=sum(int(each.execution_count) for each in stats),
            rows=sum(int(each.inference_count) for each in stats),
            queue_ms=sum(int(each.inference_stats.queue.ns) for each in stats) / 1e6,
            compute_ms=sum(int(getattr(each.inference_stats, part).ns) for each in stats for part in computed) / 1e6,
        )

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        try:
            yield
        except (InferenceServerException, grpc.RpcError) as error:
            status = error.status() if isinstance(error, InferenceServerException) else ""
            text = error.message() if isinstance(error, InferenceServerException) else str(error)
            message = " ".join(str(text).split())[:600]
            if status in ("StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED") and "model" not in message.lower():
                raise Temporary(
                    f"Triton at {self.address} does not answer: {message}",
                    do="Check `shiplift status`, then try again.",
                ) from error
            raise ServerFailed(f"Triton refused {what!r}: {message}", do="See the server's log.") from error


def given(signature: Signature, inputs: Arrays) -> list[TensorSpec]:
    """The inputs that a request has: optional ones may be missing."""
    return [spec for spec in signature.inputs if spec.name in inputs or not spec.optional]


class InferenceClient(Protocol):
    """A client of a server that answers requests, over any protocol."""

    def infer(
        self,
        model: str,
        signature: Signature,
        inputs: Arrays,
        *,
        version: int | None = None,
        step: SequenceStep = ALONE,
    ) -> Arrays:
        """The outputs of one request, by name."""


def infer_one_by_one(
    client: InferenceClient,
    model: str,
    signature: Signature,
    inputs: Arrays,
    *,
    version: int | None = None,
    sequence: bool = False,
) -> Arrays:
    """A model's outputs for samples sent one by one, as the steps of one `sequence` or independently.

    Raises:
        ServerFailed: Triton refuses or fails a request.
    """
    rows = one_by_one(inputs)
    steps = steps_of(len(rows)) if sequence else [ALONE] * len(rows)
    outputs = [client.infer(model, signature, row, version=version, step=s) for row, s in zip(rows, steps, strict=True)]
    return concatenate(outputs)


def check_golden(
    client: TritonClient,
    model: str,
    signature: Signature,
    golden: Arrays,
    *,
    tolerance: float,
    version: int | None = None,
    sequences: bool = False,
) -> None:
    """Sends the golden requests one by one and compares the answers, relative to the largest expected value.

    With `sequences` they are the steps of one sequence.

    Raises:
        GoldenMismatch: an answer is wrong; the model must not take traffic.
    """
    some = first_requests(golden, GOLDEN_SAMPLES)
    outputs = infer_one_by_one(
        client, model, signature, inputs_in(some, signature), version=version, sequence=sequences
    )
    loosely = signature.streamed and tolerance > TOLERANCE["fp32"]
    name, do = model, _RERUN
    if version:
        name, do = f"{model} version {version}", "Set `serving.version_policy: {latest: 1}` to serve the new one alone."
    for spec in signature.outputs:
        expected = some[f"output/{spec.name}"]
        if loosely:
            off = _loose_difference(spec.name, expected, outputs[spec.name])
        else:
            off = difference(expected, filled(outputs[spec.name], expected.shape))
        if not off <= tolerance:
            raise GoldenMismatch(
                f"{name} answers a golden request wrongly: {spec.name!r} is off by {off:.3g}, more than the "
                f"{tolerance:.3g} allowed",
                do=do,
            )


def check_package(client: TritonClient, name: str, package: Package, golden: Arrays) -> None:
    """Checks the golden requests of a package that is loaded as `name`, as strictly as its precision allows.

    First come those of a pipeline's members, if they are in `golden`: a member that no request of the whole needs has
    no other proof. Then come those of earlier versions, if the package serves any, and those of the package itself. The
    graph behind a model of texts is checked too, if the package serves it.

    Raises:
        GoldenMismatch: an answer is wrong.
    """
    for member in package.members if isinstance(package, PipelinePackage) else ():
        if member.signature and (own := under(f"{MEMBER}{member.served}/", golden)):
            check_golden(client, member.served, member.signature, own, tolerance=TOLERANCE[member.precision])
    for earlier in package.earlier.versions:
        if own := under(f"{EARLIER}{earlier.version}/", golden):
            _check_version(client, name, package, own, earlier.precision, version=earlier.version)
    _check_version(client, name, package, golden, package.precision)


def _check_version(
    client: TritonClient,
    name: str,
    package: Package,
    golden: Arrays,
    precision: Precision,
    *,
    version: int | None = None,
) -> None:
    tolerance, sequences = TOLERANCE[precision], package.stateful
    check_golden(client, name, package.signature, golden, tolerance=tolerance, version=version, sequences=sequences)
    if package.graph_tensors:
        own = under(GRAPH, golden)
        check_golden(client, name + TENSORS, package.graph_tensors, own, tolerance=tolerance, version=version)


def _specs(tensors: Any, optional: Collection[str] = ()) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(name=t.name, datatype=t.datatype, shape=tuple(t.shape), optional=t.name in optional) for t in tensors
    )


def _loose_difference(name: str, expected: Any, actual: Any) -> float:
    """The difference between generated answers that rounding may change: 0, or infinite if most of them differ.

    In 16 bits, either of two tokens that are about equally likely may come out, and the rest of the answer follows it.
    So most answers must begin like the original's, and each prompt must have as many tokens; the rest is free. A
    single answer, which is what a heartbeat asks for, may be the one that differs.
    """
    if name == PROMPT_TOKENS:
        return difference(expected, actual)
    if name != TEXT:
        return 0.0
    pairs = zip(expected.reshape(-1), filled(actual, expected.shape).reshape(-1), strict=True)
    other = [_beginning(left) != _beginning(right) for left, right in pairs]
    return float("inf") if sum(other) > max(1, len(other) / 2) else 0.0


def _beginning(item: Any) -> str:
    """The first characters of an answer: those of its first token or tokens."""
    return text_of(item, errors="surrogateescape").strip()[:_BEGINNING]


def difference(expected: Any, actual: Any) -> float:
    """How far an answer is off: of floats relative to the largest, of labels the share that differs."""
    if expected.size != actual.size:
        return float("inf")
    left, right = expected.reshape(-1), actual.reshape(-1)
    if left.dtype.kind in "OSU":
        return text_difference(left, right)
    if left.dtype.kind in "biu":
        return float(np.mean(left != right))
    left, right = left.astype(np.float64), right.astype(np.float64)
    with np.errstate(invalid="ignore"):
        same = (left == right) | (np.isnan(left) & np.isnan(right))  # equal infinities agree, and missing numbers
        distance = np.where(same, 0.0, np.abs(left - right))
    scale = float(np.abs(left[np.isfinite(left)]).max(initial=0)) or 1.0
    return float(distance.max(initial=0)) / scale


def _input(name: str, datatype: str, array: Any) -> Any:
    shaped = as_tensor(datatype, array)
    tensor = triton.InferInput(name, list(shaped.shape), datatype)
    tensor.set_data_from_numpy(shaped)
    return tensor


def as_tensor(datatype: str, array: Any) -> Any:
    """An array in the form Triton takes: samples along the first axis, text as bytes."""
    shaped = array.reshape(-1, 1) if array.ndim == 1 else array
    if datatype == "BYTES":
        texts = [item if isinstance(item, bytes) else str(item).encode() for item in shaped.reshape(-1)]
        return np.array(texts, dtype=np.object_).reshape(shaped.shape)
    return np.ascontiguousarray(shaped, dtype=triton_to_np_dtype(datatype))
