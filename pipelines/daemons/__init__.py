"""What runs all the time: the dispatcher on a machine, the reconciler on a cluster."""
