"""The notebook of `shiplift lab` runs from top to bottom against a served model, where JupyterLab is installed."""

from pathlib import Path

import pytest

from shiplift.pipelines.commands.releases import laboratory
from tests.integration.conftest import Lab, Released

pytestmark = pytest.mark.slow


def test_every_cell_of_the_notebook_runs(lab: Lab, champion: Released, tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = laboratory.write(lab.engine, champion.model, tmp_path / "lab", lab.home)
    cells = nbformat.read(notebook, 4)
    nbclient.NotebookClient(cells, timeout=60, resources={"metadata": {"path": str(notebook.parent)}}).execute()
    shown = [output.get("data", {}) for cell in cells.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("text/html" in data for data in shown)
    assert any("p99_ms" in data.get("text/plain", "") for data in shown)
