"""What a team would serve by hand: rapidocr in Flask. gunicorn starts one process per core."""

from flask import Flask, request
from rapidocr_onnxruntime import RapidOCR

app = Flask(__name__)
engine = RapidOCR()


@app.post("/read")
def read() -> str:
    """A JPEG in, the text of its lines out, in reading order."""
    lines, _ = engine(request.get_data())
    return "\n".join(text for _, text, _ in lines or [])
