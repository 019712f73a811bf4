"""What `shiplift status` says of a model that is kept apart from the others."""

import time
from pathlib import Path

from shiplift.pipelines.engines.local import compartments, pulses
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.serving.machine.loading import Attempts
from shiplift.runtime.serving.machine.quarantine import Crashed
from shiplift.runtime.serving.machine.served import note_served
from tests.unit.examples import package


def test_why_a_model_does_not_load_stands_in_for_what_its_requests_got(tmp_path: Path) -> None:
    (tmp_path / "production" / "served").mkdir(parents=True)
    name = serving_name(package().model)
    note_served(tmp_path, package())
    pulses.write(tmp_path, {name: pulses.Pulse(verified_at=5.0, finding="Triton refused it")})
    assert compartments.read(tmp_path, package().model).finding == "Triton refused it"
    failed = Attempts(failures=3, since=0.0, next_at=time.time() + 30, why="no memory", seconds=1.0)
    entry = f'{{"{name}": {failed.model_dump_json()}}}'
    write_atomically(tmp_path / "production" / "loading.json", entry)
    pulse = compartments.read(tmp_path, package().model)
    assert pulse.verified_at == 5.0
    assert pulse.finding.startswith("it does not load: it was tried 3 times since 19")
    assert pulse.finding.endswith("s: no memory")


def test_a_model_whose_process_in_triton_s_python_backend_keeps_dying_is_quarantined(tmp_path: Path) -> None:
    name = serving_name(package().model)
    note_served(tmp_path, package())
    crash = Crashed(model=name, version=0, crashes=3, at=time.time(), pause_s=4, why="died of SIGKILL", part="process")
    write_atomically(tmp_path / "production" / "hosts.json", f'{{"{name}": {crash.model_dump_json()}}}')
    finding = compartments.read(tmp_path, package().model).finding
    assert finding.startswith("quarantined: crashed 3 times, it starts again in ")
    assert finding.endswith("s: its process died of SIGKILL")
