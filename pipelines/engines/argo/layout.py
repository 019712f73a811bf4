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
GIT_COMMITS = "shiplift-git-commits"  # the last handled commit of each repository
STEP, RELEASER, EXECUTOR, RECEIVER = "shiplift-step", "shiplift-release", "shiplift-executor", "shiplift-receiver"
# The Secrets with the registry's accounts, as MLflow's variables; see `pipelines.installation.accounts`.
REGISTRY_ADMIN, REGISTRY_RELEASE = "shiplift-registry-admin", "shiplift-registry-release"
REGISTRY_PUSH = "shiplift-registry-push"  # registers services, and changes nobody else's models
ARTIFACTS_SECRET = "shiplift-artifacts"  # noqa: S105 - the user's own: credentials of a store or an external registry
OPERATOR = "shiplift-operator"  # of TritonServices: the account that moves production's traffic
TUNER = "shiplift-tune"  # a search that measures in a pod of its own


def dashed(name: str) -> str:
    """A stage's name in Argo's templates and tasks: `load_test` becomes `load-test`."""
    return name.replace("_", "-")
