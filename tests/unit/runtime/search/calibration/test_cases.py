import pytest

from shiplift.runtime.search.calibration.cases import WINDOWS, cases_for, placements_of
from shiplift.runtime.spec.target import Target


@pytest.mark.parametrize(
    ("cores", "placements"),
    [
        (1, {(1, 1)}),
        (2, {(1, 1), (1, 2), (2, 1)}),
        (6, {(1, 1), (1, 6), (2, 3), (6, 1)}),
        (8, {(1, 1), (1, 8), (2, 4), (4, 2), (8, 1)}),
        (64, {(1, 1), (1, 64), (2, 32), (4, 16), (8, 8)}),
    ],
)
def test_all_ways_to_fill_the_cores_are_measured_and_one_thread(cores: int, placements: set[tuple[int, int]]) -> None:
    assert set(placements_of(cores, quick=False)) == placements
    assert set(placements_of(cores, quick=True)) <= placements


@pytest.mark.parametrize("cores", [1, 2, 8, 64, 192])
@pytest.mark.parametrize(("quick", "most_s"), [(True, 20), (False, 60)])
def test_the_windows_of_all_cases_leave_time_within_a_minute(cores: int, quick: bool, most_s: float) -> None:
    target = Target(name="t", accelerator="cpu-vnni", precisions=("fp32", "bf16", "int8"))
    cases = cases_for(target, cores, quick=quick)
    windows = len(cases.forms) * len(cases.placements) * len(cases.batches) * WINDOWS
    assert windows * cases.window_s <= 0.7 * most_s


def test_the_forms_are_those_that_the_target_serves() -> None:
    def forms(target: Target) -> set[tuple[str, str, str]]:
        return {(form.graph, form.engine, form.precision) for form in cases_for(target, 2, quick=True).forms}

    every = forms(Target(name="t", accelerator="cpu-vnni", precisions=("fp32", "bf16", "int8")))
    assert ("dense", "openvino", "bf16") in every
    assert ("small", "onnxruntime", "int8") in every
    assert ("trees", "trees", "fp32") in every
    assert not {each for each in every if each[1:] == ("onnxruntime", "bf16")}
    only = forms(Target(name="t", engine="onnxruntime", precisions=("fp32",)))
    assert only == {(graph, "onnxruntime", "fp32") for graph in ("dense", "small", "trees")}
