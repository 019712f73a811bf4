"""Measuring under load: realistic requests, load generators, sweeps, champion against challenger."""
