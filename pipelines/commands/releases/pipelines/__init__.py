"""What `shiplift pipeline` does: checking, registering and building pipelines of models."""
