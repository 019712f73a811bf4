"""What writes the reference out of the code, so that it can't say anything else."""
