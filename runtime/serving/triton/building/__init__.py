"""What the bundled server gets beyond its wheels when its environment is made: backends of ours, and patches."""
