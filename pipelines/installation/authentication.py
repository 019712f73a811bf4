"""MLflow's `authorization_function` on a cluster: MLflow's basic authentication, made to work behind the API server.

The command line reaches MLflow through the API server, which removes the header `Authorization` from requests that it
forwards. So the command line also sends the credentials in another header, and this function copies them back. MLflow
then checks them as usual.
"""

from typing import Any

from shiplift.runtime.serving.service_proxy import FORWARDED


def authenticate() -> Any:
    """The account that made Flask's current request, or MLflow's response if it has no valid one."""
    from flask import request  # noqa: PLC0415 - both modules come with MLflow's server
    from mlflow.server.auth import authenticate_request_basic_auth  # noqa: PLC0415

    forwarded = request.headers.get(FORWARDED)
    if forwarded and "Authorization" not in request.headers:
        request.environ["HTTP_AUTHORIZATION"] = forwarded
    return authenticate_request_basic_auth()
