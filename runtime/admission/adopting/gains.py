"""What a release of an adopted model itself would change, as its configuration shows it."""

from collections.abc import Iterator

from shiplift.runtime.admission.adopting.model_folder import ENSEMBLE, PYTHON, ModelFolder


def gains(folder: ModelFolder) -> tuple[str, ...]:
    """Sentences about what is missing or unmeasured in a model's configuration."""
    return tuple(_gains(folder))


def _gains(folder: ModelFolder) -> Iterator[str]:
    config = folder.config
    if folder.backend == ENSEMBLE:
        yield "an ensemble stays as it is: its members can be released one by one, and joined as a pipeline"
        return
    if not config.max_batch_size:
        yield "no batches (max_batch_size is 0): each request is computed alone"
    elif not config.HasField("dynamic_batching"):
        yield "no dynamic_batching: requests that wait together are computed one after another"
    elif not config.dynamic_batching.max_queue_delay_microseconds:
        yield "the delay of dynamic_batching is 0: a release measures which one pays"
    count = sum(group.count or 1 for group in config.instance_group) or 1
    yield f"{count} instance{'s' * (count != 1)}: a release measures instances and threads together"
    if not config.model_warmup:
        yield "no warm-up: the first requests after each load are slow"
    if folder.backend != PYTHON:
        yield "one precision: a release also tries bf16 and int8 and both engines, proved against this graph"
