"""A Python model as authors write it in a file of its own; the first value of a row can make it misbehave."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import mlflow
import numpy as np


def raise_an_error():
    raise ValueError("no answer to that row")


def take_ever_more_memory():
    blocks = []
    while True:
        blocks.append(np.ones(1 << 24))


def forge_an_answer():
    for descriptor in range(1, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, b"\xff" * 64)
    time.sleep(3600)


def kill_everybody():
    for pid in (1, os.getppid(), -1):
        os.kill(pid, 9)


def stay_behind():
    if not os.fork():
        time.sleep(3600)


ATTACKS = {
    1: raise_an_error,
    2: lambda: time.sleep(3600),
    3: stay_behind,
    4: lambda: subprocess.run(["/bin/true"], check=True),
    5: lambda: socket.create_connection(("127.0.0.1", 80)),
    6: take_ever_more_memory,
    7: lambda: os._exit(7),
    8: lambda: Path("/tmp/trace").write_text("here"),
    9: kill_everybody,
    10: lambda: list(Path(sys.argv[0]).parents[3].iterdir()),  # the other models
    11: forge_an_answer,
    12: lambda: Path("/proc/1/environ").read_bytes(),
    13: lambda: socket.socketpair()[0].recv(1) if socket.socket() else None,
    14: lambda: np.empty(1 << 34),
}


class Scaled(mlflow.pyfunc.PythonModel):
    def load_context(self, context):
        self.factor = float(Path(context.artifacts["factor"]).read_text())

    def predict(self, context, model_input, params=None):
        for row in model_input:
            ATTACKS.get(int(row[0]) - 1000, int)()
        return model_input * self.factor + model_input.sum(axis=1, keepdims=True)


mlflow.models.set_model(Scaled())
