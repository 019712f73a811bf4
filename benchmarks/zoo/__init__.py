"""`make zoo`: models logged as MLflow's documentation shows, released, and compared with what MLflow answers itself."""
