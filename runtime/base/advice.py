"""Advice that more than one place knows: what only the model's author can change, whatever else is tried."""

LOG_ITS_EXAMPLE = (
    "Log what it takes: `log_model(..., input_example=x, signature=infer_signature(x, outputs))`, with `x` in the "
    "dtype and the shape that it was trained on (such as `x.astype('float32')`). It has to answer batches of any size."
)
CALL_EVAL = "Call `model.eval()` before `torch.export.export` or `mlflow.pytorch.log_model`, and log it again."
# With one of these, no other form of the model is better: it is the model that has to change.
OF_THE_MODEL = frozenset({LOG_ITS_EXAMPLE, CALL_EVAL})
