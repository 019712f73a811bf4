"""A Python model that takes columns of many types, and answers some."""

import mlflow
import pandas as pd


class Greeting(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        total = model_input["amount (€ / day)"] * model_input["count"]
        name = model_input["name"].fillna("Somebody")
        when = model_input.get("when", pd.Series(pd.NaT, index=model_input.index, dtype="datetime64[ns]"))
        return pd.DataFrame(
            {
                "total": total,
                "text": name + " owes " + total.round().astype(str),
                "due": when + pd.Timedelta(days=30),
                "tags": [{"all": list(tags)} for tags in model_input["tags"]],
            }
        )


mlflow.models.set_model(Greeting())
