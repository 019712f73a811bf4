"""The processes that run all the time: the dispatcher on a machine; reconciler, operator and activator on a cluster."""
