"""Names and paths that templates, manifests and pods share, apart from `templates` so that pods don't load Hera."""

OUT = "/tmp/out"  # noqa: S108 - in the pod
HOME = "/work"
CONFIG = "/etc/shiplift"
DATA = "/data"  # where datasets are that lie on a volume
LEDGER_SECRET, TARGETS, CONFIG_MAP, LIMITS = (
    "shiplift-ledger",
    "shiplift-targets",
    "shiplift-config",
    "shiplift-limits",
)
GIT_COMMITS = "shiplift-git-commits"  # the last handled commit of each repository
EVENTS = "shiplift-events"  # how far each target of events is
STEP, RELEASER, EXECUTOR, RECEIVER = "shiplift-step", "shiplift-release", "shiplift-executor", "shiplift-receiver"
# The Secrets with the registry's accounts, as MLflow's variables; see `pipelines.installation.accounts`.
REGISTRY_ADMIN, REGISTRY_RELEASE = "shiplift-registry-admin", "shiplift-registry-release"
REGISTRY_PUSH = "shiplift-registry-push"  # may register services, but not change models of other accounts
ARTIFACTS_SECRET = "shiplift-artifacts"  # noqa: S105 - made by the user: credentials of a store or external registry
CAPTURE_READER = "shiplift-capture-reader"  # the Secret with the token of those who ask for captured rows
CAPTURE_HASHES = "shiplift-capture-hashes"  # the one with the key of hashed columns, which only the keeper gets
OPERATOR = "shiplift-operator"  # the account that moves production's traffic
TUNER = "shiplift-tune"  # the account of a search that creates a pod to measure in


def dashed(name: str) -> str:
    """A stage's name as Argo's templates and tasks have it: `load_test` becomes `load-test`."""
    return name.replace("_", "-")
