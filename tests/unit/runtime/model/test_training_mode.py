"""Programs in training mode are refused, and the layer is named; what has no such mode is not."""

from typing import Any

import pytest

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model.conversion.training_mode import require_evaluating


def program(layer: Any, *, training: bool) -> Any:
    import torch

    network = torch.nn.Sequential(torch.nn.Linear(3, 4), layer).train(training)
    return torch.export.export(network, (torch.ones(2, 3),))


@pytest.mark.slow
def test_a_layer_in_training_mode_is_named() -> None:
    torch = pytest.importorskip("torch")
    norm = torch.nn.BatchNorm1d
    for layer, name in ((norm(4), "BatchNorm in `1`"), (torch.nn.Dropout(0.5), "dropout in `1`")):
        with pytest.raises(ExportFailed, match=f"training mode: {name}"):
            require_evaluating(program(layer, training=True))
        require_evaluating(program(layer, training=False))
    for layer in (norm(4, track_running_stats=False), torch.nn.Dropout(0.0)):
        require_evaluating(program(layer, training=True))
