"""The signature that travels with a version, for clients that speak MLflow's scoring protocol."""

import numpy as np
from mlflow.models import infer_signature
from mlflow.types import ParamSchema, ParamSpec

from shiplift.runtime.model.logged_signature import scoring_of
from shiplift.runtime.records.model import PYTHON


def test_the_logged_signature_is_kept_as_mlflow_wrote_it() -> None:
    signature = infer_signature(np.ones((2, 3)), np.ones(2))
    signature.params = ParamSchema([ParamSpec("k", "long", 3)])
    logged = signature.to_dict()
    scoring = scoring_of({"signature": logged, "is_signature_from_type_hint": True}, PYTHON)
    assert scoring
    assert (scoring.inputs, scoring.outputs, scoring.params) == (logged["inputs"], logged["outputs"], logged["params"])
    assert scoring.hinted
    assert scoring.answer is None
    assert [scoring_of({"signature": logged}, flavor).params_use for flavor in ("sklearn", "pytorch")] == [  # type: ignore[union-attr]
        "ignored",  # MLflow's `predict` of that flavor takes parameters and never looks at them
        "defaults",
    ]


def test_what_is_no_signature_or_too_large_to_travel_is_left_out() -> None:
    large = infer_signature({f"column {at}": np.ones(1) for at in range(5000)}).to_dict()
    for meta in ({}, {"signature": None}, {"signature": {"inputs": None}}, {"signature": large}):
        assert scoring_of(meta, PYTHON) is None
