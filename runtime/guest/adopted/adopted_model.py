"""Runs a model of an adopted repository that was written for Triton's Python backend, as its author wrote it.

The author's folder of the model lies beside this file as it was. Triton runs `initialize`, `execute` and `finalize` in
its own process; here that is a process that can reach nothing else (`hosted_graph.py`).

Process: Triton's Python backend, as `inner.py`; its part is played by `hosted_graph.py`.
Python: the server's
Packages: none
"""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

_AUTHOR = Path(__file__).parent / "author"


class TritonPythonModel:
    """The author's model."""

    def initialize(self, args: Mapping[str, str]) -> None:
        version = (_AUTHOR / "version.txt").read_text()
        sys.path.insert(0, str(_AUTHOR / version))  # for the modules beside it
        spec = importlib.util.spec_from_file_location("model", _AUTHOR / version / "model.py")
        if spec is None or spec.loader is None:
            raise ImportError("model.py is not a Python module")
        module = importlib.util.module_from_spec(spec)
        sys.modules["model"] = module
        spec.loader.exec_module(module)
        self.model: Any = module.TritonPythonModel()
        if hasattr(self.model, "initialize"):
            self.model.initialize({**args, "model_repository": str(_AUTHOR), "model_version": version})

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        responses = self.model.execute(requests)
        if not isinstance(responses, (list, tuple)) or len(responses) != len(requests) or None in responses:
            error = pb_utils.TritonError("`execute` has to answer every request")
            return [pb_utils.InferenceResponse([], error) for _ in requests]
        return list(responses)
