"""Shared servers: which models share one, and its pods. Only the operator's process imports this package.

`placing`, `tenants` and `making` are pure. The operator starts a server with a new set of models beside the present
ones, and tells its core which server each service should be on. `operator.hosting` moves the requests.
"""
