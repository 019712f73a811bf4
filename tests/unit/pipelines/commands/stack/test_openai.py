"""Whom `shiplift openai` and `shiplift invocations` let in: everybody on this machine, and others only with a key."""

import pytest
from typer.testing import CliRunner

from shiplift.pipelines.commands.app import app
from shiplift.pipelines.commands.stack import openai
from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.host import listeners


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.com", ""])
@pytest.mark.parametrize("key", [None, ""])
@pytest.mark.parametrize("command", ["openai", "invocations"])
def test_without_a_key_it_listens_to_nobody_else(
    monkeypatch: pytest.MonkeyPatch, command: str, host: str, key: str | None
) -> None:
    monkeypatch.delenv(openai.KEY, raising=False)
    if key is not None:
        monkeypatch.setenv(openai.KEY, key)
    done = CliRunner().invoke(app, [command, "--host", host])
    assert isinstance(done.exception, UsageError)
    assert openai.KEY in str(done.exception)


@pytest.mark.parametrize(
    ("host", "only_here"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_only_loopback_counts_as_this_machine(host: str, only_here: bool) -> None:
    assert listeners.is_loopback(host) is only_here


@pytest.mark.parametrize("command", ["openai", "invocations"])
def test_the_key_is_no_option_which_others_on_the_machine_could_read(command: str) -> None:
    done = CliRunner().invoke(app, [command, "--help"])
    assert "--key" not in done.stdout
    assert openai.KEY in done.stdout
