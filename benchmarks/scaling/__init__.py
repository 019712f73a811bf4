"""The parts of `make bench-autoscale`: traces of arrivals, simulated replicas, and the rules that scale them."""
