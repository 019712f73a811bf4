"""The dashboard of a model in Grafana's format, from `templates/grafana/model.json.j2`."""

import hashlib
from functools import cache, lru_cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template

from shiplift.runtime.serving.scaling.queries import ARRIVALS, selector


@lru_cache(maxsize=1024)
def dashboard(
    *, model: str, label: str, namespace: str, service: str, operator_namespace: str, several: bool = False
) -> str:
    """The dashboard as JSON. It covers every revision of the model, so a promotion does not change it.

    `model` is the name on Triton's series and `label` the one on its pods. `several`: more than one target serves.
    """
    operated = {"namespace": operator_namespace, "service": service}
    text = _template().render(
        title=f"Model {service} in {namespace}",
        uid=hashlib.sha256(f"{namespace}/{service}".encode()).hexdigest()[:20],
        requests=selector({"namespace": namespace, "model": model}),
        failed=selector({"namespace": namespace, "model": model})[:-1] + ',reason!="CANCELED"}',
        median=selector({"namespace": namespace, "model": model, "quantile": "0.5"}),
        late=selector({"namespace": namespace, "model": model, "quantile": "0.99"}),
        pods=selector({"namespace": namespace, "shiplift_dev_model": label}),
        containers=selector({"namespace": namespace, "container": "triton"})[:-1] + f',pod=~"{label}-.*"}}',
        operated=selector(operated),
        several=several,
        arrivals=ARRIVALS + selector({"namespace": namespace, "tritonservice": service}),
    )
    return text.strip()


@cache
def _template() -> Template:
    text = files("shiplift.templates").joinpath("grafana", "model.json.j2").read_text()
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)  # noqa: S701 - JSON
    return environment.from_string(text)
