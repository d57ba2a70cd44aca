"""The certificate of a server, for both of its ports."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from tracelake._errors import UsageError


@dataclass(frozen=True)
class Tls:
    """Paths of a certificate, with those that vouch for it, and of its key; PEM."""

    cert: str
    key: str

    def check(self) -> None:
        """Raises UsageError where they cannot be used."""
        try:
            self.context()
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"the certificate {self.cert} with the key {self.key} cannot be used: {error}; both are PEM files, and "
                "the key has no password"
            ) from None

    def context(self) -> ssl.SSLContext:
        """Return what HTTP connections begin TLS with. Raises OSError, SSLError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key, password="")
        return context

    def read(self) -> tuple[bytes, bytes]:
        """Return the key and the certificate, as gRPC wants them."""
        return Path(self.key).read_bytes(), Path(self.cert).read_bytes()
