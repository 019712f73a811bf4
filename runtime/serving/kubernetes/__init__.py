"""A Kubernetes cluster as the place where models are served."""
