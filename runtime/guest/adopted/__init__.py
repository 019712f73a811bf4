"""What runs an adopted Python model."""
