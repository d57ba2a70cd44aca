"""Checks of keys, sessions, audit records and secrets for `tracelake verify`."""

from __future__ import annotations

from collections.abc import Iterator

from tracelake.access import audit, keys, oidc, sessions
from tracelake.results import Finding
from tracelake.storage import KeyValueStore
from tracelake.storage.verify import check_records


def check_access(key_value: KeyValueStore) -> Iterator[Finding]:
    """Yield a finding for each key, session, audit record and secret that is not as written."""
    return check_records(key_value, (keys.PARTITION, sessions.PARTITION, audit.PARTITION, oidc.PARTITION))
