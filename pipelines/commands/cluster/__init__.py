"""Commands that install Shiplift on a cluster, or remove it."""
