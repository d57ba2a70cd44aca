"""The certificate of a server, for both of its ports, also once it is renewed."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tracelake import limits
from tracelake._errors import UsageError

logger = logging.getLogger("tracelake.server")


@dataclass(frozen=True)
class Tls:
    """Paths of a certificate, with those that vouch for it, and of its key; PEM."""

    cert: str
    key: str

    def check(self) -> None:
        """Raises UsageError where they cannot be used."""
        try:
            self.context()
        except OSError as error:
            raise UsageError(
                f"the certificate {self.cert} with the key {self.key} cannot be used: {error}; both are PEM files, and "
                "the key has no password"
            ) from None

    def context(self) -> ssl.SSLContext:
        """Return what HTTP connections begin TLS with. Raises OSError, of which SSLError is one."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key, password="")
        return context

    def read(self) -> tuple[bytes, bytes]:
        """Return the key and the certificate, as gRPC wants them. Raises OSError."""
        return Path(self.key).read_bytes(), Path(self.cert).read_bytes()


class Renewal:
    """What connections begin TLS with, as the files have it when they come. One thread uses it.

    While the files do not fit each other, as between the two that are replaced, what was there before goes on.
    """

    def __init__(self, tls: Tls, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the files. Raises OSError."""
        self._tls = tls
        self._clock = clock
        self._looked_s = clock()
        self._pair, self._context = tls.read(), tls.context()

    def context(self) -> ssl.SSLContext:
        """Return it for HTTP."""
        self._look()
        return self._context

    def pair(self) -> tuple[bytes, bytes]:
        """Return the key and the certificate, for gRPC."""
        self._look()
        return self._pair

    def _look(self) -> None:
        now_s = self._clock()
        if now_s - self._looked_s < limits.TLS_LOOK_S:
            return
        self._looked_s = now_s
        try:
            pair = self._tls.read()
            if pair == self._pair:
                return
            context = self._tls.context()
            if pair != self._tls.read():
                return  # they are being replaced: the next look will do
        except OSError as error:
            logger.warning(
                "the certificate %s cannot be used, so the one before is: %s", self._tls.cert, error
            )
            return
        self._pair, self._context = pair, context
        logger.info("the certificate %s was renewed", self._tls.cert)
