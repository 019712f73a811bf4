"""Load: requests like the model's own, perf_analyzer, sweeps, champion against challenger."""
