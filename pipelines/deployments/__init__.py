"""MLflow's deployment plugin: `mlflow deployments create -t shiplift`, and `get_deploy_client("shiplift")`."""
