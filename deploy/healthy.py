"""Ask the server of this container whether it lives; with TLS its certificate is for other names than this one."""

import os
import ssl
import urllib.request

scheme = "https" if os.environ.get("TRACELAKE_TLS_CERT") else "http"
unchecked = ssl._create_unverified_context()  # noqa: S323  of this very container
urllib.request.urlopen(f"{scheme}://127.0.0.1:4318/healthz", timeout=2, context=unchecked)  # noqa: S310
