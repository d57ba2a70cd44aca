"""Objects in a bucket of S3, GCS or Azure, over a network that loses requests and replies.

**A lost reply to `create`.** A retry of a create fails if the first attempt succeeded. Each create therefore carries a
write id in the object's metadata, the same in all attempts. If an object exists already, or no reply arrives, the
object is read back, and its write id identifies the writer. Conditional writes are therefore sent once by the client
library, retried only here, and never sent in several parts.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.store import from_url

from tracelake import limits
from tracelake._errors import IndeterminateError, NotFoundError, StorageError, UsageError
from tracelake.storage import failures
from tracelake.storage.ports import ObjectInfo, check_path, check_prefix, check_range, tries

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion
    from obstore.store import ObjectStore as Client

ResultT = TypeVar("ResultT")
BUCKET_SCHEMES: Final = ("s3", "gs", "az")
# Letters only, because Azure accepts no dash in such a name, and proxies drop underscores.
_WRITE_ID: Final = "tracelakewriteid"


class Bucket:
    """One bucket by URL, with a client that retries and one that never does."""

    def __init__(self, url: str) -> None:
        """Open `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`; no request is sent yet.

        Credentials, the endpoint and Azure's account come from the environment, under the names of each vendor's
        tools. Raises UsageError if the URL or the environment is invalid.
        """
        self.url = url.rstrip("/")
        parts = urlsplit(url)
        if parts.scheme not in BUCKET_SCHEMES or not parts.netloc or parts.query or parts.fragment:
            raise UsageError(f"{url!r} is not the URL of a bucket; write it like s3://bucket/prefix")
        self.reading = connect(self.url, limits.STORE_TRIES_MAX - 1)
        self.once = connect(self.url, 0)

    def put_once(self, path: str, body: bytes, mode: PutMode, attributes: dict[str, str]) -> Exception | None:
        """Send one conditional put, in one part. Return None on success, otherwise the library's exception.

        Raises StorageError if the store refused; then nothing was written.
        """
        try:
            obstore.put(self.once, path, body, mode=mode, attributes=attributes, use_multipart=False)
        except failures.OBSTORE_ERRORS as error:
            if failures.of_obstore(error) in (failures.FailureKind.REFUSED, failures.FailureKind.NOT_FOUND):
                raise failed("write", self.url, path, error) from error
            return error
        return None

    def get_versioned(self, path: str) -> tuple[bytes | None, PutMode]:
        """Return the bytes of an object, and the condition for a put that replaces exactly them."""
        try:
            reply, body = read_again(lambda: _read_body(obstore.get(self.reading, path)))
        except failures.OBSTORE_ERRORS as error:
            if failures.of_obstore(error) is failures.FailureKind.NOT_FOUND:
                return None, "create"
            raise failed("read", self.url, path, error) from error
        # S3 and Azure compare the e-tag, GCS the version; the client library accepts no None.
        condition: UpdateVersion = {"e_tag": reply.meta["e_tag"]}
        if reply.meta["version"] is not None:
            condition["version"] = reply.meta["version"]
        return body, condition


def _read_body(reply: obstore.GetResult) -> tuple[obstore.GetResult, bytes]:
    return reply, reply.bytes().to_bytes()


class BucketObjectStore:
    """An `ObjectStore` in a bucket. Safe for any number of threads and processes, except forked ones.

    All methods raise StorageError if the store fails or is unreachable.
    """

    def __init__(self, url: str) -> None:
        """Open an existing bucket as `Bucket` does. Raises UsageError if the URL or the environment is invalid."""
        self._bucket = Bucket(url)
        self._client = self._bucket.reading

    @property
    def url(self) -> str:
        """Return the URL without credentials."""
        return self._bucket.url

    def put(self, path: str, data: bytes) -> None:
        """Write an object, replacing an existing one; durable on return."""
        check_path(path)
        with self._failures("write", path):
            obstore.put(self._client, path, data)

    def create(self, path: str, data: bytes) -> bool:
        """Write an object if none exists; return False if one does. Never leaves a partial object.

        Raises IndeterminateError if the object may have been written and cannot be read back.
        """
        check_path(path)
        write_id = uuid.uuid4().hex
        error: Exception | None = None
        doubt: Exception | None = None
        for _ in tries():
            error = self._bucket.put_once(path, data, "create", {_WRITE_ID: write_id})
            if error is None:
                return True
            if failures.of_obstore(error) is failures.FailureKind.UNKNOWN:
                doubt = error
            try:
                stored_id = self._write_id(path)
            except NotFoundError:
                # No object: not written, or not yet. The same write id makes a retry harmless.
                continue
            except StorageError as unread:
                doubt = doubt or unread
                continue
            return stored_id == write_id
        if doubt is None:
            assert error is not None, "there is at least one try"
            raise failed("create", self.url, path, error) from error
        raise IndeterminateError(
            f"{path} may or may not have been created in {self.url} ({failures.obstore_text(doubt)}); repair the "
            "store, then read the object back to see which writer succeeded"
        ) from doubt

    def replace(self, path: str, data: bytes, expected: bytes) -> bool:
        """Replace an object if its bytes are `expected`; return False if it has others, or is absent.

        After a lost reply, it returns True if the object has the new bytes, also if another writer wrote them.
        """
        check_path(path)
        error: Exception | None = None
        is_doubtful = False
        for _ in tries():
            current, condition = self._bucket.get_versioned(path)
            if current != expected:
                return is_doubtful and current == data
            error = self._bucket.put_once(path, data, condition, {})
            if error is None:
                return True
            is_doubtful |= failures.of_obstore(error) is failures.FailureKind.UNKNOWN
        assert error is not None, "there is at least one try"
        raise failed("replace", self.url, path, error) from error

    def get(self, path: str) -> bytes:
        """Return the whole object. Raises NotFoundError if it is absent."""
        check_path(path)
        with self._failures("read", path):
            return read_again(lambda: obstore.get(self._client, path).bytes().to_bytes())

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`, fewer at the end. Raises NotFoundError if the object is absent."""
        check_path(path)
        check_range(path, start, length)
        if length:
            try:
                return read_again(
                    lambda: obstore.get_range(self._client, path, start=start, length=length).to_bytes()
                )
            except failures.OBSTORE_ERRORS as error:
                # Stores answer with an error if a range begins at or after the end.
                if failures.of_obstore(error) is not failures.FailureKind.UNKNOWN:
                    raise failed("read", self.url, path, error) from error
        with self._failures("read", path):
            size: int = obstore.head(self._client, path)["size"]
            if not length or start >= size:
                return b""
            end = min(size, start + length)
            return read_again(lambda: obstore.get_range(self._client, path, start=start, end=end).to_bytes())

    def head(self, path: str) -> ObjectInfo | None:
        """Return size and time, or None if the object is absent."""
        check_path(path)
        # A HEAD reply has no body, so it does not distinguish an absent bucket from an absent object.
        for ask in (obstore.head, _meta):
            try:
                with self._failures("read", path):
                    return _info(ask(self._client, path))
            except NotFoundError:
                continue
        return None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose path begins with `prefix`, in order of path.

        Raises StorageError if the store does not list in order.
        """
        check_prefix(prefix)
        return self._list(prefix)

    def copy(self, source: str, target: str) -> None:
        """Copy an object, replacing the target. Raises NotFoundError if the source is absent."""
        check_path(source)
        check_path(target)
        with self._failures("copy", source):
            if source == target:
                # S3 refuses to copy an object to itself, so only check that it exists.
                obstore.head(self._client, source)
            else:
                obstore.copy(self._client, source, target)

    def delete(self, path: str) -> None:
        """Delete the object, if it exists."""
        check_path(path)
        try:
            with self._failures("delete", path):
                obstore.delete(self._client, path)
        except NotFoundError:
            pass

    def local_path(self, path: str) -> str | None:
        """Return None, because no file exists."""
        check_path(path)
        return None

    def _write_id(self, path: str) -> str | None:
        with self._failures("read back", path):
            return obstore.get(self._client, path).attributes.get(_WRITE_ID)

    def _list(self, prefix: str) -> Iterator[ObjectInfo]:
        last = ""
        with self._failures("list", prefix):
            # The offset is exclusive, and an object whose path equals the prefix belongs to the listing.
            for page in list_pages(self._client, prefix.rpartition("/")[0], prefix[:-1] or None):
                for meta in page:
                    info = _info(meta)
                    if info.path <= last:
                        raise StorageError(
                            f"{self.url} does not list objects in order of names; use another store"
                        )
                    last = info.path
                    if info.path.startswith(prefix):
                        yield info
                    elif info.path > prefix:
                        return

    @contextmanager
    def _failures(self, doing: str, path: str) -> Iterator[None]:
        try:
            yield
        except failures.OBSTORE_ERRORS as error:
            raise failed(doing, self.url, path, error) from error


def list_pages(client: Client, directory: str, offset: str | None) -> Iterator[Sequence[Any]]:
    """Yield pages of a listing after a path. If a reply is truncated, list again after the last complete page."""
    pauses = tries()
    next(pauses)
    while True:
        try:
            for page in obstore.list(
                client, directory or None, offset=offset, chunk_size=limits.OBJECTS_LISTED_AT_ONCE
            ):
                yield page
                if page:
                    offset = page[-1]["path"]
                    pauses = tries()
                    next(pauses)
        except failures.OBSTORE_ERRORS as error:
            if not failures.is_body_cut(error) or next(pauses, None) is None:
                raise
        else:
            return


def read_again(read: Callable[[], ResultT]) -> ResultT:
    """Read, and retry if the reply was truncated: the client library retries only with an entity tag."""
    pauses = tries()
    next(pauses)
    while True:
        try:
            return read()
        except failures.OBSTORE_ERRORS as error:
            if not failures.is_body_cut(error) or next(pauses, None) is None:
                raise


def connect(url: str, retries: int, **timeouts: timedelta) -> Client:
    """Return a client of the library; no request is sent yet. Raises UsageError if URL or environment is invalid."""
    options: Any = {
        "timeout": timedelta(seconds=limits.OBJECT_REQUEST_TIMEOUT_S),
        "connect_timeout": timedelta(seconds=limits.STORE_CONNECT_TIMEOUT_S),
        # The URL, which the user chose, decides whether an endpoint is plain HTTP.
        "allow_http": True,
        **timeouts,
    }
    retry: Any = {
        "max_retries": retries,
        "retry_timeout": timedelta(seconds=limits.STORE_TRIES_TIMEOUT_S),
        "backoff": {
            "init_backoff": timedelta(seconds=limits.STORE_PAUSE_FIRST_S),
            "max_backoff": timedelta(seconds=limits.STORE_PAUSE_MAX_S),
            "base": 2,
        },
    }
    try:
        return from_url(url, client_options=options, retry_config=retry)
    except (*failures.OBSTORE_ERRORS, ValueError) as error:
        raise UsageError(
            f"cannot use {url}: {failures.obstore_text(error)}; correct the URL or the environment"
        ) from error


def failed(doing: str, url: str, path: str, error: Exception) -> StorageError | NotFoundError:
    """Return the error to raise for an error of the client library.

    A 404 for a write means that the server is no object store, or has no such bucket.
    """
    if failures.of_obstore(error) is failures.FailureKind.NOT_FOUND and doing not in ("write", "create"):
        return NotFoundError(f"no object {path!r} in {url}; check the path, or list what is there")
    return StorageError(f"cannot {doing} {path!r} in {url}: {failures.explain_obstore(error)}")


def _meta(client: Client, path: str) -> Any:
    return obstore.get(client, path).meta


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["last_modified"].timestamp())
