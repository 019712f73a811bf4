"""What people see of a model that serves: its alerts and its dashboard, as queries over Triton's own metrics."""
