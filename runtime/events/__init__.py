"""Tells other systems what happened to models: events, kept on disk until each target has them."""
