"""Triton over gRPC, as a step needs it: load, unload, ask, count. Errors become ours, with Triton's own words."""

import secrets
import time
from collections.abc import Iterator
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
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.precision import Precision
from shiplift.runtime.records.serving import Package
from shiplift.runtime.records.tensor import Signature, TensorSpec

_LOAD_S = 300
_ASK_S = 60
_GOLDEN_SAMPLES = 8
# Relative to the largest output. The same file gives the same float answers to rounding, half precision to the bits
# it has; int8 kernels may pick another rounding of a half, one step of 255, on another batch size.
TOLERANCE: dict[Precision, float] = {"fp32": 1e-3, "fp16": 1e-2, "bf16": 5e-2, "int8": 5e-2, "fp8": 1e-1}


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Requests as a server counts them."""

    answered: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.answered + self.failed

    @property
    def failed_share(self) -> float:
        """The share that failed; 0 where there were none."""
        return self.failed / max(1, self.total)

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(answered=self.answered + other.answered, failed=self.failed + other.failed)

    def since(self, before: "Counts") -> "Counts":
        """What came after `before`; a server that was restarted since has counted none."""
        return Counts(answered=max(0, self.answered - before.answered), failed=max(0, self.failed - before.failed))


@dataclass(frozen=True, kw_only=True)
class Step:
    """A request's place in a sequence, in Triton's words; an id of 0: it is in none."""

    sequence_id: int = 0
    sequence_start: bool = False
    sequence_end: bool = False


ALONE = Step()


def steps_of(count: int) -> list[Step]:
    """The steps of a sequence of `count` requests that nobody else has under way."""
    sequence = secrets.randbelow(2**62) + 1
    return [Step(sequence_id=sequence, sequence_start=at == 0, sequence_end=at == count - 1) for at in range(count)]


class TritonClient:
    """A client of one server at `host:port` (gRPC)."""

    def __init__(self, address: str, *, authority: str = "", repository_key: str = "") -> None:
        """`authority` names the host behind a shared address, as a gateway's routes match it.

        `repository_key` opens the API that loads models where the server was started with one.
        """
        self.address = address
        self._key = {"triton-grpc-protocol-shiplift": repository_key} if repository_key else None
        named = [("grpc.default_authority", authority)] if authority else None
        self._client = triton.InferenceServerClient(address, channel_args=named)

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
        """Whether a model (and that version of it) takes requests."""
        try:
            return bool(self._client.is_model_ready(model, str(version or ""), client_timeout=5))
        except InferenceServerException:
            return False

    def versions(self, model: str) -> list[int]:
        """The versions of a model that take requests."""
        with self._translated(model):
            index = self._client.get_model_repository_index(headers=self._key, client_timeout=_ASK_S).models
        return [int(m.version) for m in index if m.name == model and m.state == "READY" and m.version]

    def loaded(self) -> dict[str, list[int]]:
        """Every model that takes requests, with its versions."""
        with self._translated("the server"):
            index = self._client.get_model_repository_index(headers=self._key, client_timeout=_ASK_S).models
        found: dict[str, list[int]] = {}
        for model in index:
            if model.state == "READY" and model.version:
                found.setdefault(model.name, []).append(int(model.version))
        return found

    def load(self, model: str, config: model_config_pb2.ModelConfig | None = None) -> float:
        """Loads, or reloads in place, a model of the repository; gives the seconds it took.

        A reload is atomic: the version before answers until the new one is warmed, and goes on if that fails. With a
        `config` that is what it is loaded under, whatever its config.pbtxt says.

        Raises:
            ServerFailed: Triton can't load it.
        """
        started = time.monotonic()
        override = json_format.MessageToJson(config, preserving_proto_field_name=True) if config else None
        with self._translated(model):
            self._client.load_model(model, headers=self._key, config=override, client_timeout=_LOAD_S)
        return time.monotonic() - started

    def unload(self, model: str) -> None:
        """Unloads a model, if it is loaded, and waits until it is gone."""
        with self._translated(model):
            self._client.unload_model(model, headers=self._key, client_timeout=_ASK_S)
        deadline = time.monotonic() + _ASK_S
        while self.versions(model) and time.monotonic() < deadline:
            time.sleep(0.02)

    def config(self, model: str) -> model_config_pb2.ModelConfig:
        """The configuration that a loaded model runs under, with what Triton filled in."""
        with self._translated(model):
            return self._client.get_model_config(model, client_timeout=_ASK_S).config

    def signature(self, model: str) -> Signature:
        """A model's tensors, as the server tells them."""
        with self._translated(model):
            said = self._client.get_model_metadata(model, client_timeout=_ASK_S)
        return Signature(inputs=_specs(said.inputs), outputs=_specs(said.outputs))

    def ask(
        self, model: str, signature: Signature, inputs: Arrays, *, version: int | None = None, step: Step = ALONE
    ) -> Arrays:
        """The outputs of one request, by name.

        Raises:
            ServerFailed: Triton refuses or fails the request.
        """
        given = [_input(spec.name, spec.datatype, inputs[spec.name]) for spec in signature.inputs]
        with self._translated(model):
            result = self._client.infer(
                model, given, model_version=str(version or ""), client_timeout=_ASK_S, **vars(step)
            )
        return {spec.name: result.as_numpy(spec.name) for spec in signature.outputs}

    def answered_by(self, package: Package, inputs: Arrays) -> int:
        """Which version answers a request that names none; Triton's own exception if it fails."""
        given = [_input(spec.name, spec.datatype, inputs[spec.name]) for spec in package.signature.inputs]
        (step,) = steps_of(1) if package.sequences else (ALONE,)
        result = self._client.infer(serving_name(package.model), given, client_timeout=_ASK_S, **vars(step))
        return int(result.get_response().model_version)

    def failures(self, model: str) -> int:
        """How many requests of a model failed since it was loaded."""
        return self.counts(model).failed

    def counts(self, model: str) -> "Counts":
        """What the server counted of a model's requests since it was loaded."""
        with self._translated(model):
            stats = self._client.get_inference_statistics(model, client_timeout=_ASK_S).model_stats
        return Counts(
            answered=sum(int(entry.inference_stats.success.count) for entry in stats),
            failed=sum(int(entry.inference_stats.fail.count) for entry in stats),
        )

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        try:
            yield
        except (InferenceServerException, grpc.RpcError) as error:
            status = error.status() if isinstance(error, InferenceServerException) else ""
            message = error.message() if isinstance(error, InferenceServerException) else str(error)
            said = " ".join(str(message).split())[:600]
            if status in ("StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED") and "model" not in said.lower():
                raise Temporary(
                    f"Triton at {self.address} does not answer: {said}", do="Check `shiplift status`, then try again."
                ) from error
            raise ServerFailed(f"Triton refused {what!r}: {said}", do="See the server's log.") from error


class Answering(Protocol):
    """A server that answers requests, over whichever protocol."""

    def ask(
        self, model: str, signature: Signature, inputs: Arrays, *, version: int | None = None, step: Step = ALONE
    ) -> Arrays:
        """The outputs of one request, by name."""


def one_by_one(
    client: Answering, model: str, signature: Signature, inputs: Arrays, *, version: int | None = None,
    sequence: bool = False,
) -> Arrays:  # fmt: skip
    """What a model answers to samples that are asked in turn, as the steps of one `sequence` or each for itself.

    Raises:
        ServerFailed: Triton refuses or fails a request.
    """
    count = len(next(iter(inputs.values())))
    rows = [{name: array[at : at + 1] for name, array in inputs.items()} for at in range(count)]
    steps = steps_of(count) if sequence else [ALONE] * count
    got = [client.ask(model, signature, row, version=version, step=step) for row, step in zip(rows, steps, strict=True)]
    return {spec.name: np.concatenate([one[spec.name] for one in got]) for spec in signature.outputs}


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
    """Sends the known samples one by one and compares the answers, relative to the largest value wanted.

    With `sequences` they are the steps of one.

    Raises:
        GoldenMismatch: an answer is wrong; the model must not take traffic.
    """
    inputs = {spec.name: golden[f"input/{spec.name}"] for spec in signature.inputs}
    count = min(len(next(iter(inputs.values()))), _GOLDEN_SAMPLES)
    asked = {name: array[:count] for name, array in inputs.items()}
    got = one_by_one(client, model, signature, asked, version=version, sequence=sequences)
    for spec in signature.outputs:
        apart = _apart(golden[f"output/{spec.name}"][:count], got[spec.name])
        if not apart <= tolerance:
            raise GoldenMismatch(
                f"{model} answers a golden request wrongly: {spec.name!r} is {apart:.3g} off, not {tolerance:.3g}",
                do="Rerun the release; if it stays, the serving ONNX Runtime computes the model differently.",
            )


def check_package(client: TritonClient, name: str, package: Package, golden: Arrays) -> None:
    """The same for a package that is loaded as `name`, as exactly as its precision allows.

    Raises:
        GoldenMismatch: an answer is wrong.
    """
    tolerance = TOLERANCE[package.precision]
    check_golden(client, name, package.signature, golden, tolerance=tolerance, sequences=package.sequences)


def _specs(tensors: Any) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name=t.name, datatype=t.datatype, shape=tuple(t.shape)) for t in tensors)


def _apart(wanted: Any, got: Any) -> float:
    if wanted.size != got.size:
        return float("inf")
    left, right = wanted.reshape(-1), got.reshape(-1)
    if left.dtype.kind in "OSU":
        texts = [item.decode() if isinstance(item, bytes) else str(item) for item in right]
        return 0.0 if [str(item) for item in left] == texts else float("inf")
    if left.dtype.kind in "biu":
        return float(np.mean(left != right))
    left, right = left.astype(np.float64), right.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.where(left == right, 0.0, np.abs(left - right))  # equal infinities agree
    scale = float(np.abs(left[np.isfinite(left)]).max(initial=0)) or 1.0
    return float(apart.max(initial=0)) / scale


def _input(name: str, datatype: str, array: Any) -> Any:
    shaped = as_tensor(datatype, array)
    entry = triton.InferInput(name, list(shaped.shape), datatype)
    entry.set_data_from_numpy(shaped)
    return entry


def as_tensor(datatype: str, array: Any) -> Any:
    """An array as Triton takes it: samples along the first axis, texts as bytes."""
    shaped = array.reshape(-1, 1) if array.ndim == 1 else array
    if datatype == "BYTES":
        texts = [item if isinstance(item, bytes) else str(item).encode() for item in shaped.reshape(-1)]
        return np.array(texts, dtype=np.object_).reshape(shaped.shape)
    return np.ascontiguousarray(shaped, dtype=triton_to_np_dtype(datatype))
