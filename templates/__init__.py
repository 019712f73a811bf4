"""Templates rendered or written for users: HTML reports, the commented spec, Kubernetes objects, an example."""
