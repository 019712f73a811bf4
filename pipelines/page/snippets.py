"""The same request as people write it elsewhere: for a shell, for Python, and for Triton's own client."""

import json
import shlex
from typing import Any

from shiplift.pipelines.page.requests import tensors_of
from shiplift.runtime.serving.discovery import ServedModel

_TYPES = {"BOOL": "bool", "BYTES": "object"}


def snippets(served: ServedModel, body: str) -> dict[str, str]:
    """The request by the name of its client; without Triton's if this form of request can't be said in tensors."""
    asked: dict[str, str] = {"curl": _curl(served.invocations, body), "Python": _python(served.invocations, body)}
    tensors = tensors_of(served, body)
    if tensors:
        asked["tritonclient"] = _triton(served, tensors)
    return asked


def _curl(address: str, body: str) -> str:
    return f"curl {shlex.quote(address)} -H 'Content-Type: application/json' -d {shlex.quote(body)}"


def _python(address: str, body: str) -> str:
    return (
        f"import httpx\n\nrequest = {json.loads(body)!r}\n"
        f"answer = httpx.post({address!r}, json=request)\nprint(answer.json())"
    )


def _triton(served: ServedModel, tensors: dict[str, tuple[str, Any]]) -> str:
    lines = ["import numpy as np", "import tritonclient.grpc as triton", "", "inputs = []"]
    for name, (datatype, values) in tensors.items():
        lines += [
            f"array = np.array({values!r}, dtype={_numpy(datatype)!r})",
            f"inputs.append(triton.InferInput({name!r}, list(array.shape), {datatype!r}))",
            "inputs[-1].set_data_from_numpy(array)",
        ]
    outputs = ", ".join(f"answer.as_numpy({each.name!r})" for each in served.signature.outputs)
    lines += [
        f"client = triton.InferenceServerClient({served.grpc!r})",
        f"answer = client.infer({served.name!r}, inputs)",
        f"print({outputs})",
    ]
    return "\n".join(lines)


def _numpy(datatype: str) -> str:
    return _TYPES.get(datatype) or datatype.replace("FP", "float").lower()
