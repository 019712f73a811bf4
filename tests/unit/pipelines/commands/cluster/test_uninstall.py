"""Removing an installation ends production, so it is asked for."""

import sys
from pathlib import Path
from typing import Any

import pytest

from shiplift.pipelines.commands.cluster import uninstall as command
from shiplift.pipelines.installation import uninstall as removal
from shiplift.runtime.base.errors import UsageError
from tests.unit.api_server import running


def test_production_ends_only_if_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[bool] = []

    def uninstalled(*_: Any, data: bool, **__: Any) -> removal.Removed:
        done.append(data)
        return removal.Removed(objects=(), kept=())

    monkeypatch.setattr(removal, "uninstall", uninstalled)
    monkeypatch.setattr(sys, "stdin", open("/dev/null"))  # noqa: SIM115, PTH123 - nobody to ask
    with running() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        command.uninstall()
        server.kinds["/apis/shiplift.dev/v1alpha1"] = [
            {"name": "tritonservices", "kind": "TritonService", "namespaced": True}
        ]
        idle = {"metadata": {"name": "new"}, "spec": {"model": "new", "revision": "new-1-a"}}
        server.objects["tritonservices"]["new"] = idle
        command.uninstall()
        serves = {"observedGeneration": 1, "revision": "digits-1-a", "version": 1}
        server.objects["tritonservices"]["digits"] = {
            "metadata": {"name": "digits"},
            "spec": {"model": "digits", "revision": "digits-1-a"},
            "status": serves,
        }
        with pytest.raises(UsageError, match=r"digits serves in the namespace shiplift-serving.*Pass --yes"):
            command.uninstall()
        command.uninstall(data=True, yes=True)
    assert done == [False, False, True]
