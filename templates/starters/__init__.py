"""The training scripts of `shiplift init --for LIBRARY`."""
