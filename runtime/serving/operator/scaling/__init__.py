"""Who decides how many pods a service has, and what the operator does about it. Pure, like all of its decisions."""
