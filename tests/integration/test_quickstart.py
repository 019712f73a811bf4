"""The quick start of the documentation, line by line, against a stack of its own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shiplift.runtime.host.processes import free_port
from shiplift.runtime.serving.triton.environment import default_root, ensure

PAGE = Path(__file__).parents[2] / "docs/quickstart.md"
PORTS = {"MLFLOW": 5000, "RECEIVER": 8090, "HTTP": 8000, "GRPC": 8001, "METRICS": 8002, "SCORING": 8005, "PAGE": 8007}
DONE_BEFORE = ("python3 -m venv", "pip install")


def script() -> list[str]:
    """The shell's lines before the page's second part, without those that make the environment."""
    first = PAGE.read_text().partition("## Your own model")[0]
    lines = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```$", first, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    return [line for line in lines if not line.startswith(DONE_BEFORE)]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_quick_start_works_line_by_line(tmp_path: Path) -> None:
    ports = {name: free_port() for name in PORTS}
    variables = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    variables |= {f"SHIPLIFT_{name}_PORT": str(port) for name, port in ports.items()}
    variables |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SHIPLIFT_SERVER_ENVIRONMENT": str(ensure(default_root()).root),
        "SHIPLIFT_WARM_MINUTES": "0",
    }
    answers: dict[str, str] = {}

    def run(line: str) -> str:
        for name, default in PORTS.items():
            line = line.replace(f"127.0.0.1:{default}", f"127.0.0.1:{ports[name]}")
        shell = ["bash", "-euo", "pipefail", "-c", line]
        done = subprocess.run(
            shell, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, f"{line}: {done.stdout[-2000:]}{done.stderr[-3000:]}"
        return done.stdout

    try:
        for line in script():
            answers[line.split()[0] + line.split()[1]] = run(line)
    finally:
        subprocess.run(["bash", "-c", "shiplift down"], cwd=tmp_path, env=variables, check=False, timeout=120)
    (answer,) = (json.loads(text) for line, text in answers.items() if line.startswith("curl"))
    assert len(answer["predictions"]) == 1
    assert "champion" in answers["shipliftstatus"]
    assert answers["shipliftinfer"].strip()
