"""The world a step works in, and what stays running after it. Imports no step and no pipeline."""
