"""Clients of plain HTTP, on this machine or inside of a cluster, load no certificates.

httpx reads the bundle of all public authorities for each client, which takes longer than many of its requests. A client
with `NO_AUTHORITIES` trusts none, so it fails if it is sent to an address with TLS.
"""

import ssl

NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
