"""One client of an MLflow server, for its registry and for the artifacts that it keeps, without MLflow."""
