"""A stateful model: released, load-tested in sequences, and answering each of them from its own state."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mlflow.models import infer_signature
from numpy.typing import NDArray

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.records.measurement import LoadReport
from shiplift.runtime.serving.triton.client import SequenceStep, TritonClient, steps_of
from shiplift.runtime.serving.triton.repository import GOLDEN
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.ledger import Ledger
from tests.integration.conftest import Lab, request

SPEC = """
search: {{time_budget_s: 2, max_batch: [8], queue_delay_us: [0], instances: [1], threads: [1], window_ms: 100}}
load:
  {{concurrency: [1, 20], window_ms: 150, attempts: 1, comparison_rounds: 1, open_loop_s: 2, sequence_length: 6,
    seed: {seed}}}
slo: {{p99_ms: 1000, regression: {{p99_percent: 1000, throughput_percent: 1000, score: 1}}}}
serving: {{sequence_batching: {{states: {{hidden: next_hidden}}, max_candidate_sequences: 16}}}}
"""


class Tally(torch.nn.Module):  # type: ignore[misc]
    """Says whether more was put in than taken out so far, which a single step can't show."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = torch.nn.GRUCell(1, 8), torch.nn.Linear(8, 2)

    def forward(self, amount: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        next_hidden = self.cell(amount, hidden)
        return self.head(next_hidden), next_hidden


def trained() -> Tally:
    torch.manual_seed(0)
    model, amounts = Tally(), torch.randn(256, 10)
    labels = (amounts.cumsum(1) > 0).long()
    optimiser = torch.optim.Adam(model.parameters(), 0.03)
    for _ in range(120):
        hidden, scores = torch.zeros(256, 8), []
        for step in range(10):
            score, hidden = model(amounts[:, step : step + 1], hidden)
            scores.append(score)
        predicted = torch.stack(scores, 1)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(predicted.reshape(-1, 2), labels.reshape(-1)).backward()
        optimiser.step()
    assert (predicted.argmax(2) == labels).float().mean() > 0.9
    model.eval()
    return model


def as_onnx(model: Tally, folder: Path) -> Any:
    import onnx

    batch = {0: torch.export.Dim("batch")}
    program = torch.onnx.export(
        model,
        (torch.zeros(2, 1), torch.zeros(2, 8)),
        dynamo=True,
        input_names=["amount", "hidden"],
        output_names=["scores", "next_hidden"],
        dynamic_shapes=(batch, batch),
        verbose=False,
    )
    assert program is not None
    program.save(str(folder / "tally.onnx"))
    return onnx.load(folder / "tally.onnx")


def answers(model: Tally, amounts: NDArray[Any]) -> NDArray[Any]:
    """The model's own answers to amounts (steps, 1)."""
    hidden, scores = torch.zeros(1, 8), []
    with torch.inference_mode():
        for step in torch.tensor(amounts):
            score, hidden = model(step[None], hidden)
            scores.append(score.numpy()[0])
    return np.array(scores)


@pytest.fixture(scope="module")
def tally(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Tally:
    """The first version of `tally` is released."""
    model = trained()
    release(lab, as_onnx(model, tmp_path_factory.mktemp("tally")), seed=0)
    return model


def release(lab: Lab, graph: Any, *, seed: int) -> LoadReport:
    """Releases another version of `tally`; returns what its load test measured."""
    inputs = {"amount": np.ones((3, 1), np.float32), "hidden": np.zeros((3, 8), np.float32)}
    outputs = {"scores": np.zeros((3, 2), np.float32), "next_hidden": np.zeros((3, 8), np.float32)}
    options = {"signature": infer_signature(inputs, outputs), "input_example": inputs}
    version = lab.log(
        "tally", lambda **kwargs: lab.mlflow.onnx.log_model(graph, **options, **kwargs), spec=SPEC.format(seed=seed)
    )
    report = lab.wait("tally", version)
    assert report.exit_code == 0, report.reason
    load = lab.engine.story(report).load_report
    assert load is not None
    return load


@pytest.mark.slow
def test_each_sequence_is_answered_from_its_own_state(lab: Lab, tally: Tally) -> None:
    rows = np.random.default_rng(1).normal(size=(3, 7, 1)).astype(np.float32)
    with TritonClient(lab.grpc) as client:
        name = serving_name("tally")
        signature = client.signature(name)
        assert [spec.name for spec in (*signature.inputs, *signature.outputs)] == ["amount", "scores"]
        steps = [steps_of(7) for _ in rows]
        scores = [
            [
                client.infer(name, signature, {"amount": row[at : at + 1]}, step=plan[at])["scores"][0]
                for row, plan in zip(rows, steps, strict=True)
            ]
            for at in range(7)
        ]
    for number, row in enumerate(rows):
        np.testing.assert_allclose([step[number] for step in scores], answers(tally, row), atol=1e-4)


@pytest.mark.slow
def test_a_sequence_that_was_not_started_is_refused(lab: Lab, tally: Tally) -> None:
    with TritonClient(lab.grpc) as client:
        name = serving_name("tally")
        signature, amount = client.signature(name), {"amount": np.ones((1, 1), np.float32)}
        with pytest.raises(ServerFailed, match="correlation ID"):
            client.infer(name, signature, amount)
        with pytest.raises(ServerFailed, match="START"):
            client.infer(name, signature, amount, step=SequenceStep(sequence_id=77))


@pytest.mark.slow
def test_the_command_line_sends_a_file_as_a_sequence(lab: Lab, tally: Tally, tmp_path: Path) -> None:
    amounts = np.array([[2.0], [-3.0], [4.0]], np.float32)
    np.savez(tmp_path / "steps.npz", amount=amounts)
    answer = lab.engine.infer("tally", tmp_path / "steps.npz", sequence=True)
    np.testing.assert_allclose(answer.outputs["scores"], answers(tally, amounts), atol=1e-4)


@pytest.mark.slow
def test_it_was_measured_in_sequences(lab: Lab, tally: Tally, tmp_path: Path) -> None:
    """Under load with more sequences than an instance has slots, and at fixed rates."""
    load = lab.engine.story(lab.wait("tally", 1)).load_report
    assert load is not None
    assert load.failures == 0
    assert [point.concurrency for point in load.points] == [1, 20]
    assert load.open_points
    promotion = Ledger(lab.site, request("tally", 1)).promotion()
    assert promotion is not None
    assert promotion.package.stateful
    tree = ArtifactStore(lab.site.artifacts_uri).fetch(promotion.package.repository, tmp_path / "package")
    with np.load(tree / GOLDEN) as golden:
        assert set(golden.files) == {"input/amount", "output/scores"}


@pytest.mark.slow
def test_the_next_version_is_compared_with_the_champion_in_sequences(lab: Lab, tally: Tally, tmp_path: Path) -> None:
    assert release(lab, as_onnx(tally, tmp_path), seed=1).comparison is not None
