"""Names and paths that templates, manifests and pods agree on: apart from `argo`, since a pod should not load Hera."""

OUT = "/tmp/out"  # noqa: S108 - in the pod
HOME = "/work"
CONFIG = "/etc/shiplift"
LEDGER_SECRET, TARGETS, CONFIG_MAP, LIMITS = (
    "shiplift-ledger",
    "shiplift-targets",
    "shiplift-config",
    "shiplift-limits",
)
STEP, RELEASER, EXECUTOR, RECEIVER = "shiplift-step", "shiplift-release", "shiplift-executor", "shiplift-receiver"
TUNER = "shiplift-tune"  # a search that needs a pod to measure on


def dashed(name: str) -> str:
    """A stage's name as Argo's templates and tasks have it: `load_test` is `load-test`."""
    return name.replace("_", "-")
