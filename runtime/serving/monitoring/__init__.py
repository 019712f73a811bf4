"""The alerts and the dashboard of a served model, as queries over Triton's own metrics."""
