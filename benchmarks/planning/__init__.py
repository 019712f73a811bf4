"""What `make bench-planner` plans: pipelines of models, and one that is measured on a real server."""
