"""The model registry: MLflow over its REST API."""
