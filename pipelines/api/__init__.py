"""What programs and notebooks use: `shiplift.release`, `releases`, `status` and `predict`."""
