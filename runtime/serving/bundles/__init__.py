"""What Triton serves of a pipeline of models: a repository with each member, and the graph as an ensemble or in BLS."""
