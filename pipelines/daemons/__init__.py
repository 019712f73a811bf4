"""The processes that run all the time: the dispatcher on a machine, the reconciler on a cluster."""
