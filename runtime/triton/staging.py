"""The staging server of one release: started by `deploy`, used by `load_test`, ended with the release.

It is a child of the release's process and dies with it. Its folder also says who it was, so that the release's last
stage can end it, and clear the folder, whatever happened before.
"""

import shutil
from pathlib import Path

from runtime.names import serving_name
from runtime.processes import kill
from runtime.records import Process, Site
from runtime.storage import write_atomically
from runtime.triton.environment import ServerEnvironment
from runtime.triton.server import Features, Server, start_private


class Staging:
    """The staging server of a model version."""

    def __init__(self, site: Site, model: str, version: int) -> None:
        self._environment = ServerEnvironment(Path(site.server_environment))
        self.folder = Path(site.home) / "staging" / f"{serving_name(model)}-{version}"
        self._state = self.folder / "process.json"

    def start(self, features: Features) -> Server:
        """A fresh server with an empty repository; one from before is ended first.

        Raises:
            ServerFailed: it did not come up.
        """
        self.end()
        server = start_private(self._environment, self.folder / "models", features, log=self.folder / "triton.log")
        write_atomically(self._state, server.process.model_dump_json())
        return server

    def end(self) -> None:
        """Ends the server, if there is one, and removes its folder."""
        if self._state.is_file():
            kill(Process.model_validate_json(self._state.read_text()))
        shutil.rmtree(self.folder, ignore_errors=True)
