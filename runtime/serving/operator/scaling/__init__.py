"""Who decides how many pods a service has, and what the operator does about it: pure, as all of its decisions."""
