"""MLflow's `authorization_function` on a cluster: its own basic authentication, also behind the API server's proxy.

The command line reaches MLflow through the API server, which removes `Authorization` from what it passes on. So the
command line sends the same credentials under another name as well, and here they get their usual name back. Nothing
else changes: MLflow checks them as ever.
"""

from typing import Any

from shiplift.runtime.serving.service_proxy import FORWARDED


def authenticate() -> Any:
    """The account of the request that Flask is handling, or MLflow's response to a request without a valid one."""
    from flask import request  # noqa: PLC0415 - both come with MLflow's server
    from mlflow.server.auth import authenticate_request_basic_auth  # noqa: PLC0415

    forwarded = request.headers.get(FORWARDED)
    if forwarded and "Authorization" not in request.headers:
        request.environ["HTTP_AUTHORIZATION"] = forwarded
    return authenticate_request_basic_auth()
