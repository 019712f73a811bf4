"""Names and paths that templates, manifests and pods share. Not in `templates`, so that pods don't load Hera."""

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
TUNER = "shiplift-tune"  # a search that measures in a pod of its own


def dashed(name: str) -> str:
    """A stage's name in Argo's templates and tasks: `load_test` becomes `load-test`."""
    return name.replace("_", "-")
