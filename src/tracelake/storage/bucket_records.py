"""Records as objects of a bucket, replaced on the condition of their e-tag: no database at all.

One object a key, replaced by a put that names the e-tag of what it replaces. The body carries the write
id, so that a put whose reply was lost is told by reading back; while the old body still stands there, the
same put is tried again, with the same write id and e-tag, and can land once at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import obstore

from tracelake import limits
from tracelake._errors import ContentionError, IndeterminateError, StorageError
from tracelake.storage.buckets import Bucket, BucketObjectStore, failed, read_again
from tracelake.storage.failures import OBSTORE_ERRORS, FailureKind, obstore_text, of_obstore
from tracelake.storage.names import check_value
from tracelake.storage.outcomes import new_version
from tracelake.storage.ports import Conflict, Done, Expected, Indeterminate, Outcome, Version
from tracelake.storage.record_objects import (
    ObjectRecord,
    conflict_at,
    decode,
    encode,
    record_path,
)
from tracelake.storage.records_in_objects import RecordsInObjects
from tracelake.storage.retries import tries

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion


class BucketKeyValueStore(RecordsInObjects):
    """A `KeyValueStore` in a bucket; for any number of threads, and of processes that were not forked.

    Deleted records leave a small object. All methods raise StorageError where the store fails or cannot
    be reached, DamageError where an object is no whole record.
    """

    def __init__(self, url: str) -> None:
        """Open a bucket as `Bucket` does; nothing else should be under its prefix. Raises UsageError."""
        self._bucket = Bucket(url)
        super().__init__(BucketObjectStore(url))

    def set(self, partition: str, key: str, value: bytes) -> Version:
        """Write the record whatever was there. Raises IndeterminateError where that stays unknown."""
        check_value(key, value)
        # On a condition too: a plain put whose reply was lost could land later, over somebody's next write.
        for _ in range(limits.CONDITIONAL_WRITE_TRIES_MAX):
            path = record_path(partition, key)
            body, mode = self._body(path)
            if body is not None:
                decode(path, body)  # a damaged one is not written over unseen
            outcome = self._replace(partition, key, value, body, mode)
            if isinstance(outcome, Done):
                return outcome.version
            if isinstance(outcome, Indeterminate):
                raise IndeterminateError(
                    f"the write of {partition!r} / {key!r} may or may not have happened: {outcome.reason}; "
                    "read the record, and write it again if need be"
                )
        raise ContentionError(f"others write {key!r} in {self._bucket.url} all the time; try again later")

    def _write_if(self, partition: str, key: str, value: bytes | None, expected: Expected) -> Outcome:
        for _ in range(limits.CONDITIONAL_WRITE_TRIES_MAX):
            path = record_path(partition, key)
            body, mode = self._body(path)
            conflict = conflict_at(path, body, expected)
            if conflict is not None:
                return conflict
            outcome = self._replace(partition, key, value, body, mode)
            if not isinstance(outcome, Conflict):
                return outcome
        raise ContentionError(f"others write {key!r} in {self._bucket.url} all the time; try again later")

    def _replace(
        self, partition: str, key: str, value: bytes | None, before: bytes | None, mode: PutMode
    ) -> Outcome:
        """Replace what was read; Conflict where another write came first and ours certainly did not."""
        path, version = record_path(partition, key), new_version()
        body = encode(path, partition, key, value, version)
        reason, error = "", None
        for _ in tries():
            error = self._bucket.put_once(path, body, mode, {})
            if error is None:
                return Done(version)
            if of_obstore(error) is FailureKind.UNKNOWN:
                reason = reason or f"no clear answer from {self._bucket.url}: {obstore_text(error)}"
            try:
                now = self._body(path)[0]
            except StorageError as unread:
                reason = reason or str(unread)
                continue
            if now == body:
                return Done(version)
            if now != before:
                # A lost try of ours may have been there and been replaced since.
                return Indeterminate(version, reason) if reason else Conflict(None)
        if not reason:
            assert error is not None, "there is at least one try"
            raise failed("write", self._bucket.url, path, error) from error
        return Indeterminate(version, reason)

    def _place(self, path: str) -> str:
        return path

    def _at(self, place: str) -> ObjectRecord | None:
        body = self._body(place)[0]
        return None if body is None else decode(place, body)

    def _body(self, path: str) -> tuple[bytes | None, PutMode]:
        """Return what is at the path, and the condition under which a put replaces exactly that."""
        try:
            reply, body = read_again(lambda: _whole(obstore.get(self._bucket.reading, path)))
        except OBSTORE_ERRORS as error:
            if of_obstore(error) is FailureKind.NOT_FOUND:
                return None, "create"
            raise failed("read", self._bucket.url, path, error) from error
        # S3 and Azure go by the e-tag, GCS by the version; the client library takes no None.
        condition: UpdateVersion = {"e_tag": reply.meta["e_tag"]}
        if reply.meta["version"] is not None:
            condition["version"] = reply.meta["version"]
        return body, condition


def _whole(reply: obstore.GetResult) -> tuple[obstore.GetResult, bytes]:
    return reply, reply.bytes().to_bytes()
