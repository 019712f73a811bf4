"""A Python model as authors write it in a file of its own; the first value of a row can make it misbehave."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import mlflow
import numpy as np


def spend_memory():
    blocks = []
    while True:
        blocks.append(np.ones(1 << 24))


def misbehave(code):
    if code == 1:
        raise ValueError("no answer to that row")
    if code == 2:
        time.sleep(3600)
    if code == 3:
        os.fork()
    if code == 4:
        subprocess.run(["/bin/true"], check=True)
    if code == 5:
        socket.create_connection(("127.0.0.1", 80))
    if code == 6:
        spend_memory()
    if code == 7:
        os._exit(7)
    if code == 8:
        Path("/tmp/trace").write_text("here")
    if code == 9:
        os.kill(os.getppid(), 9)
    if code == 10:
        print(list(Path(os.environ.get("TRITON", sys.path[0])).parents[2].iterdir()))
        list(Path("/root").iterdir())
    if code == 11:
        os.write(1, b"\xff" * 64)
        os.write(3, b"\xff" * 64)


class Scaled(mlflow.pyfunc.PythonModel):
    def load_context(self, context):
        self.factor = float(Path(context.artifacts["factor"]).read_text())

    def predict(self, context, model_input, params=None):
        for row in model_input:
            misbehave(int(row[0]) - 1000)
        return model_input * self.factor + model_input.sum(axis=1, keepdims=True)


mlflow.models.set_model(Scaled())
