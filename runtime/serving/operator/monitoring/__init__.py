"""How people see what a service does: the objects that the operator makes for it."""
