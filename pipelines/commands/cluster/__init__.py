"""Commands that put Shiplift on a cluster, or take it off."""
