"""A Python model that takes named columns, and answers some."""

import mlflow
import pandas as pd


class Greeting(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        total = model_input["amount"] * model_input["count"]
        return pd.DataFrame({"total": total, "text": model_input["name"] + " owes " + total.round().astype(str)})


mlflow.models.set_model(Greeting())
