"""How many replicas a service should have: the capacity of each, the rule, and the rule as Prometheus queries."""
