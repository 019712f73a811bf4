"""Python models (`mlflow.pyfunc`): their environment, and the confined process that answers for them."""
