"""Measuring load: requests like the model's own, load generators, sweeps, champion against challenger."""
