"""Asks the server on a bench what the original was asked, and describes a difference so that anybody can repeat it."""

import json
import shlex
import time
from typing import Any

from shiplift.runtime.base.errors import Temporary
from shiplift.runtime.model.tensors import Arrays, load_npz
from shiplift.runtime.proof.file import from_file, sets_in
from shiplift.runtime.proof.requests import Asked
from shiplift.runtime.proof.served import PATIENCE_S, Difference, JudgedForm, prove_served
from shiplift.runtime.proof.settings import Busy, rows_of
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import Differing
from shiplift.runtime.records.proof import ServedProof
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.search.bench import Bench
from shiplift.runtime.search.space import Point
from shiplift.runtime.serving.triton.client import TOLERANCE, TritonClient, as_tensor
from shiplift.runtime.store.artifacts import ArtifactStore

_SHARE = 0.75  # of the time that an execution may take
_LONGEST = 4000  # characters of a request that is shown


def served_proof(
    bench: Bench, package: Package, config: ServingConfig, store: ArtifactStore
) -> ServedProof | Differing:
    """Serves the package with this configuration, and asks it the rows of its export's proof.

    Raises:
        ServerFailed: the server can't load it.
        Temporary: the server does not answer.
    """
    assert package.questions is not None  # noqa: S101 - the caller looked
    started, arrays = time.monotonic(), load_npz(store.read(package.questions))
    asked = [from_file(arrays, name) for name in sets_in(arrays)]
    model = bench.serve(Point(package, config))
    most = 1 if package.signature.batch == 1 else config.max_batch
    with TritonClient(bench.address("grpc")) as client:
        asking = Asking(client, model, package)
        proof = prove_served(
            asking, asked, JudgedForm(lossy=tolerance_of(package)), most=most, patience=_patience(package)
        )
    if asking.lost:
        raise asking.lost
    if isinstance(proof, ServedProof):
        _require_answers(proof)
        return proof.model_copy(update={"seconds": round(time.monotonic() - started, 3)})
    return Differing(
        engine=package.engine,
        precision=package.precision,
        config=config,
        found=proof.found,
        request=body_of(package, rows_of(asked[proof.of][0].inputs, [proof.found.row])),
        repeat=_command(package, asked, proof),
    )


def tolerance_of(package: Package) -> float | None:
    """What a lossy form may be off from itself; None for a form that must answer what the original does.

    A GPU rounds the factors of FP32's products to 10 bits.
    """
    lossless = package.precision in ("fp32", "fp64") and not package.nodes.gpus
    return None if lossless else TOLERANCE[package.precision]


def _patience(package: Package) -> float:
    """How many seconds of work the server may have at once: it may do it in one execution, which has a limit."""
    return min(PATIENCE_S, _SHARE * package.needs.request_timeout_s)


def _require_answers(proof: ServedProof) -> None:
    if not proof.settings[0].rows:
        raise Temporary(
            f"the server answered no question of the proof: {', '.join(proof.left_out)}", do="Rerun the release."
        )


class Asking:
    """Asks a server; `lost` is set once it does not answer anybody, which is not an answer of the model's."""

    def __init__(self, client: TritonClient, model: str, package: Package) -> None:
        """`model` is the name under which it is served."""
        self._client, self._model, self._signature = client, model, package.signature
        self.lost: Temporary | None = None

    def __call__(self, inputs: Arrays) -> Arrays:
        """The answers to one request."""
        given = tuple(spec for spec in self._signature.inputs if not spec.optional or spec.name in inputs)
        signature = self._signature.model_copy(update={"inputs": given})
        try:
            return self._client.infer(self._model, signature, inputs)
        except Temporary as error:
            if self._client.live():  # its queue is full, or the request waited too long
                raise Busy(error.what) from error
            self.lost = error
            raise


def _command(package: Package, asked: Asked, difference: Difference) -> str:
    """The command that asks the row again, among those that were asked with it; rows are numbered through all sets."""
    before = sum(len(questions.origins) for questions, _ in asked[: difference.of])
    alone = difference.found.setting == "alone"
    rows = [difference.found.row, *(() if alone else difference.company)]
    numbers = " ".join(f"--row {before + row}" for row in rows)
    crowd = f" --clients {difference.clients}" if difference.clients > 1 else ""
    return f"shiplift ask {shlex.quote(package.model)}/{package.version} --form {package.variant} {numbers}{crowd}"


def body_of(package: Package, inputs: Arrays) -> str:
    """Rows as the body of an inference request over HTTP; empty if JSON can't say it shortly."""
    tensors = [
        _tensor(spec.name, spec.datatype, inputs[spec.name]) for spec in package.signature.inputs if spec.name in inputs
    ]
    try:
        text = json.dumps({"inputs": tensors}, allow_nan=False)
    except (TypeError, ValueError):
        return ""
    return text if len(text) <= _LONGEST else ""


def _tensor(name: str, datatype: str, array: Any) -> dict[str, Any]:
    shaped = as_tensor(datatype, array)
    data = [item.decode() if isinstance(item, bytes) else item for item in shaped.reshape(-1).tolist()]
    return {"name": name, "datatype": datatype, "shape": list(shaped.shape), "data": data}
