"""Shared servers: which models share one, and its pods. A satellite: only the operator's process imports it.

`placing`, `tenants` and `making` are pure. The operator starts a server with another set of models beside the present
ones, and tells its core which server each service should be on. `operator.hosting` moves the requests.
"""
