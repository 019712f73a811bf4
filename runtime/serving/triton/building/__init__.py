"""What the bundled server's environment has beyond its wheels: our own backends, and patches."""
