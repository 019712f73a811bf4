"""The same request as people write it elsewhere: for a shell, for Python, and for Triton's own client."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from shiplift.pipelines.page.requests import tensors_of
from shiplift.runtime.serving.discovery import ServedModel

_TYPES = {"BOOL": "bool", "BYTES": "object"}


def snippets(served: ServedModel, body: str, files: Mapping[str, str] | None = None) -> dict[str, str]:
    """The request by the name of its client; without Triton's if this form of request can't be said in tensors.

    `files` are names of files by their base64 in the request: what is written reads these.
    """
    files = files or {}
    asked = {"curl": _curl(served.invocations, body, files), "Python": _python(served.invocations, body, files)}
    tensors = tensors_of(served, body)
    if tensors:
        asked["tritonclient"] = _triton(served, tensors, files)
    return asked


def _curl(address: str, body: str, files: Mapping[str, str]) -> str:
    to = f"curl {shlex.quote(address)} -H 'Content-Type: application/json'"
    parts = _parts(body, files)
    if len(parts) == 1:
        return f"{to} -d {shlex.quote(body)}"
    words = [f'"$(base64 -w0 {shlex.quote(files[part])})"' if part in files else shlex.quote(part) for part in parts]
    return f"printf %s {' '.join(words)} | {to} -d @-"


def _parts(body: str, files: Mapping[str, str]) -> list[str]:
    """The request, taken apart at the files in it."""
    parts = [body]
    for encoded in files:
        parts = [
            piece
            for part in parts
            for at, text in enumerate([part] if part in files else part.split(encoded))
            for piece in ([encoded, text] if at else [text])
        ]
    return parts


def _python(address: str, body: str, files: Mapping[str, str]) -> str:
    request = _reading(repr(json.loads(body)), files)
    imports = "import base64\nfrom pathlib import Path\n\nimport httpx" if files else "import httpx"
    return f"{imports}\n\nrequest = {request}\nanswer = httpx.post({address!r}, json=request)\nprint(answer.json())"


def _reading(text: str, files: Mapping[str, str]) -> str:
    """Python in which files are read instead of written down."""
    for encoded, name in files.items():
        text = text.replace(repr(encoded), f"base64.b64encode(Path({name!r}).read_bytes()).decode()")
    return text


def _triton(served: ServedModel, tensors: dict[str, tuple[str, Any]], files: Mapping[str, str]) -> str:
    lines = ["import base64", "from pathlib import Path", ""] if files else []
    lines += ["import numpy as np", "import tritonclient.grpc as triton", "", "inputs = []"]
    for name, (datatype, values) in tensors.items():
        lines += [
            f"array = np.array({_reading(repr(values), files)}, dtype={_numpy(datatype)!r})",
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
