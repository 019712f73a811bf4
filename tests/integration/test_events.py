"""A target is told of a release on a real stack, with a signature that it can check, though it was away at first."""

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shiplift.pipelines.engines.local.site_file import FILE
from shiplift.runtime.events.outbox import Outbox
from tests.integration.conftest import Lab, until

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SECRET = b"a secret of this test"


class Target:
    """A server that refuses everything until it is told otherwise."""

    def __init__(self) -> None:
        self.status, self.refused, self.got = 503, 0, list[dict[str, Any]]()
        target = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + body
                digest = base64.b64encode(hmac.new(SECRET, signed, hashlib.sha256).digest()).decode()
                assert self.headers["webhook-signature"] == f"v1,{digest}"
                if target.status == 200:
                    target.got.append(json.loads(body))
                else:
                    target.refused += 1
                self.send_response(target.status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def of(self, model: str) -> list[str]:
        return [each["type"] for each in self.got if each["data"]["model"] == model]


@contextmanager
def told(lab: Lab, secret: Path) -> Iterator[Target]:
    """A target that the lab's site names while the context lasts."""
    target, file = Target(), lab.home / FILE
    assert not file.exists()
    url = f"http://127.0.0.1:{target.server.server_port}/"
    file.write_text(f"events: {{targets: [{{name: test, url: '{url}', secret_file: '{secret}'}}]}}")
    try:
        until(lambda: Outbox(lab.home).places())
        yield target
    finally:
        file.unlink()
        target.server.shutdown()
        target.server.server_close()


def test_a_target_hears_of_a_release_and_of_what_became_of_it(lab: Lab, tmp_path: Path) -> None:
    model, secret = "told", tmp_path / "secret"
    secret.write_bytes(SECRET)
    with told(lab, secret) as target:
        version = lab.log_classifier(model)
        assert lab.wait(model, version).exit_code == 0
        until(lambda: target.refused)
        target.status = 200
        lab.engine.retire(model, 0, reason="enough", force=True)
        until(lambda: len(target.of(model)) >= 3, seconds=120)
    expected = ["release.started", "release.promoted", "model.retired"]
    assert target.of(model) == [f"dev.shiplift.{kind}" for kind in expected]
    assert [event.kind for event in lab.engine.model_events(model, newest=9, follow=False)] == expected
