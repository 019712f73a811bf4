"""A pipeline of models as Triton serves it: a repository with each member, and the graph as an ensemble or in BLS."""
