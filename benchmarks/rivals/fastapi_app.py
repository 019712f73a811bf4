"""FastAPI, uvicorn and onnxruntime: the session runs in the thread pool, so that the event loop keeps reading."""

from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool

from benchmarks.rivals.model import array_of, onnx

app = FastAPI()
predict = onnx()


@app.post("/predict")
async def answer(request: Request) -> Response:
    """Raw samples in, raw float32 scores out."""
    scores = await run_in_threadpool(predict, array_of(await request.body()))
    return Response(scores.tobytes(), media_type="application/octet-stream")
