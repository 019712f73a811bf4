"""The engines by name. The command line chooses one; no other code depends on which it is."""

from collections.abc import Callable

from shiplift.pipelines.choices import EngineName
from shiplift.pipelines.engines.protocol import Engine
from shiplift.pipelines.settings import Settings


def _local(settings: Settings) -> Engine:
    from shiplift.pipelines.engines.local.engine import LocalEngine  # noqa: PLC0415 - only the chosen one is loaded

    return LocalEngine(settings.root)


def _argo(settings: Settings) -> Engine:
    from shiplift.pipelines.engines.argo.engine import ArgoEngine  # noqa: PLC0415

    return ArgoEngine(settings.namespace, settings.root)


ENGINES: dict[EngineName, Callable[[Settings], Engine]] = {"local": _local, "argo": _argo}


def choose(settings: Settings) -> Engine:
    """The engine that the settings name."""
    return ENGINES[settings.engine](settings)
