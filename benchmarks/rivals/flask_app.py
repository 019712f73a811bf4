"""Flask and eager torch: the model runs in the web process, with a thread per request."""

import warnings

from flask import Flask, Response, request

from benchmarks.rivals.model import array_of, native

warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
app = Flask(__name__)
predict = native()


@app.post("/predict")
def answer() -> Response:
    """Raw samples in, raw float32 scores out."""
    return Response(predict(array_of(request.get_data())).tobytes(), mimetype="application/octet-stream")
