"""The models: those whose answers went wrong in public bug reports and their relatives, and those that are right."""
