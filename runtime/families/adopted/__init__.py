"""Models of Triton repositories that were adopted as they are."""
