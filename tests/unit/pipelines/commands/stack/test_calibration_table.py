import pytest

from shiplift.pipelines.commands.stack import calibration_table, status_tables
from shiplift.pipelines.engines.answers import ModelVersions
from shiplift.runtime.records.calibration import Rate, Unavailable
from shiplift.runtime.records.deployment import Endpoint
from tests.unit.examples import calibration


def shown(capsys: pytest.CaptureFixture[str], **changes: object) -> str:
    rates = tuple(
        Rate(graph="dense", precision=precision, instances=instances, threads=1, batch=8, rows_per_s=rows)
        for precision, instances, rows in (("fp32", 1, 100), ("fp32", 2, 180), ("int8", 2, 720))
    )
    unavailable = (Unavailable(graph="trees", engine="trees", precision="fp32", why="no treelite"),)
    calibration_table.show(calibration(rates=rates, unavailable=unavailable, seconds=31.4, **changes))
    return capsys.readouterr().out


def test_forms_are_shown_fastest_first_with_what_could_not_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys).splitlines()
    assert lines[0] == "EPYC, 2 cores: cpu-vnni"
    int8, fp32 = (next(line for line in lines if line.startswith(name)) for name in ("int8", "fp32 on ONNX"))
    assert lines.index(int8) < lines.index(fp32)
    assert int8.split()[-8:] == ["-", "720", "100%", "batch", "8,", "2", "x", "1"]
    assert fp32.split()[4:7] == ["100", "180", "25%"]
    assert "fp32 on treelite: no treelite" in lines
    assert any(line.endswith("in 31 s") for line in lines)


def test_what_limits_or_disturbed_a_calibration_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, cpu_share=1.5, disturbed_cores=0.7, quick=True)
    assert "2 cores, 1.5 by quota" in text
    assert "Other processes used 0.7 cores meanwhile" in text
    assert "in 31 s, quick" in text


def test_a_status_says_why_cores_are_left_idle(capsys: pytest.CaptureFixture[str]) -> None:
    where = Endpoint(http="http://127.0.0.1:1/v2/models/x", grpc="127.0.0.1:2")
    for idle in ("the chosen configuration can use 1 of 2 cores", ""):
        status_tables.show(ModelVersions(model="digits", serving_name="digits", endpoint=where, idle=idle, versions=()))
        assert ("cores are left idle: the chosen configuration" in capsys.readouterr().out) == bool(idle)
