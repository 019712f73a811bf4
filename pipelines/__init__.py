"""What runs, in which order, and what starts it. May import `steps` and `runtime`; nothing imports it."""
