"""Keeps a service healthy between rollouts: checks its answers, replaces pods and cleans up."""
