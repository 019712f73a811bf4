"""Each layer bites: with all others and without it, attacks succeed that fail with it."""

import subprocess
import sys
from pathlib import Path

import pytest

from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.guest.fronts import encoded
from shiplift.runtime.guest.fronts.encoded import BadImage
from shiplift.runtime.guest.fronts.pixel_front import decoded
from shiplift.runtime.model.python import inspection
from tests.attack.families import families
from tests.attack.runner import place
from tests.unit.runtime.guest.fronts.test_encoded import SETTINGS, with_scans

# What succeeds without these layers, and the only attacks that run without them: each touches nothing but the folder of
# its test. Read-only mounts stop what Landlock stops as well, so they bite where that is missing.
BITES = {
    "namespaces": {"see the machine's interfaces", "be in the machine's namespaces"},
    "landlock": {"open {SECRETS}/secret", "map {SECRETS}/secret", "open link", "copy /proc/self/root{SECRETS}/secret"},
    "landlock mounts": {"append {SECRETS}/secret", "create {SECRETS}/secret", "symlink {SECRETS}/secret"},
    "seccomp": {"socket 2 1", "socketpair 2", "setsockopt SO number 5", "open FASYNC", "sendto MSG_CONFIRM"},
    "rlimits": {"memory without limit", "more files", "core dumps", "a larger heap"},
}


@pytest.mark.parametrize("layers", sorted(BITES))
def test_without_a_layer_of_the_sandbox_attacks_succeed(tmp_path: Path, layers: str) -> None:
    every = {name: code for family in families().values() for name, code in family.items()}
    mounts = BITES["landlock mounts"] if layers == "landlock" else set()
    attacks = {name: every[name] for name in sorted(BITES[layers] | mounts)}
    with place(tmp_path) as attacked:
        outcomes = attacked.run(attacks, without=layers)
    succeeded = {name for name, met in outcomes.items() if met == "done"}
    assert BITES[layers] <= succeeded
    assert not mounts & succeeded


def test_without_the_inspection_a_wheel_replaces_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attacked(name: str) -> inspection.InstalledFiles:
        environment = tmp_path / name
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", environment], check=True)
        before = inspection.seen(environment)
        (environment / "bin" / "python").unlink()
        (environment / "bin" / "python").write_text("#!/bin/sh\n")
        return inspection.inspect(environment, before)

    with pytest.raises(NotAdmitted, match="replaces 'bin/python'"):
        attacked("with")
    monkeypatch.setattr(inspection, "_check_unchanged", lambda *_: None)
    assert attacked("without").files == 0


def test_without_the_limits_of_size_an_image_takes_as_long_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    image = with_scans(300, size=500)
    with pytest.raises(BadImage, match="has over 100 scans"):
        decoded(image, SETTINGS)
    monkeypatch.setattr(encoded, "MOST_SCANS", 1 << 30)
    monkeypatch.setattr(encoded, "_USUAL_SCANS", 1 << 30)
    assert decoded(image, SETTINGS).shape == (8, 8, 3)
