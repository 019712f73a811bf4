"""MLflow's scoring protocol for every model in production: `/invocations`, `/ping`, `/health` and `/version`.

A request in one of the common forms becomes tensors at once. Any other, and every one that is wrong, goes through
MLflow's own code, so that it is understood or refused as `mlflow models serve` does.
"""
