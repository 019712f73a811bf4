"""The signature in an `MLmodel` file as its author logged it, for clients that speak MLflow's scoring protocol."""

import json
from typing import Any

from shiplift.runtime.guest.python.agents import is_agent
from shiplift.runtime.records.model import PYTHON
from shiplift.runtime.records.scoring import ParamsUse, Scoring

_MAX_BYTES = 128 << 10  # it travels in records
# Flavors whose `predict` takes parameters and never looks at them. Others give them to the library.
_WITHOUT_PARAMS = ("onnx", "sklearn", "lightgbm", "catboost", "tensorflow", "keras")


def scoring_of(meta: dict[str, Any], flavor: str) -> Scoring | None:
    """The logged signature of a model of that flavor; None if there is none, or if it is too large to travel."""
    signature = meta.get("signature")
    if not isinstance(signature, dict) or not isinstance(signature.get("inputs"), str):
        return None
    texts = {name: _text(signature.get(name)) for name in ("inputs", "outputs", "params")}
    if sum(map(len, texts.values())) > _MAX_BYTES:
        return None
    names = [str(entry.get("name")) for entry in json.loads(texts["inputs"] or "[]")]
    agent = flavor == PYTHON and is_agent(meta.get("metadata"), meta.get("flavors"), names)
    use: ParamsUse = "ignored" if flavor in _WITHOUT_PARAMS else "defaults"
    return Scoring(**texts, hinted=bool(meta.get("is_signature_from_type_hint")), params_use=use, agent=agent)


def _text(schema: Any) -> str:
    """A schema's JSON; empty if it has no entries."""
    return schema if isinstance(schema, str) and json.loads(schema) else ""
