"""Settings from TRACELAKE_* environment variables, then from `tracelake.toml` in the current directory."""

from __future__ import annotations

import getpass
import json
import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_origin

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from tracelake import limits
from tracelake._errors import UsageError

SETTINGS_FILE: Final = "tracelake.toml"
LAKE_DEFAULT: Final = "./.tracelake"
_UNITS_NS: Final = {"m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
_DURATION: Final = re.compile(r"(0|[1-9][0-9]{0,6})([mhd])", re.ASCII)


class Admit(BaseModel):
    """Admission rule: a user with this value in this claim gets this role in this workspace."""

    model_config = ConfigDict(extra="forbid")

    claim: str = Field(min_length=1)
    value: str = Field(min_length=1)
    role: Literal["read", "annotate", "admin"]
    workspace: str = Field(min_length=1)


class Settings(BaseModel):
    """Settings other than command-line options. Environment variables have the prefix TRACELAKE_."""

    model_config = ConfigDict(extra="forbid")

    lake: str | None = None
    """Directory or URL of the lake; a relative path is relative to the current directory."""
    metadata: str | None = None
    """URL of the key-value store for the lake's metadata, if it differs from the one in `lake.json`."""
    tracking: str | None = None
    """URL of the tracking store's database, if it is outside the lake's directory or differs from `tracking.json`."""
    text: str = "english"
    """Text analyzer of the full-text index in new lakes."""
    vectors: str | None = None
    """Source of vectors in new lakes: `module:function`, `attributes.KEY`, or `none`."""
    vector_dimensions: int | None = None
    """Dimensions of the vectors in an attribute."""
    vector_metric: str | None = None
    """Similarity metric of the vectors in an attribute."""
    committer: str | None = None
    """Committer of commits that people make; by default the name of the user."""
    segment_wait_s: float = Field(default=limits.SEGMENT_WAIT_S, ge=0, le=limits.INBOX_ACK_TIMEOUT_S / 2)
    """Longest wait of a server request for others that share its inbox segment."""
    segment_max_bytes: int = Field(
        default=limits.INBOX_SEGMENT_MAX_BYTES, ge=1, le=limits.INBOX_QUEUE_MAX_BYTES
    )
    """Payload of a segment; a single request may be larger."""
    grpc: bool = True
    """Whether a server accepts OTLP/gRPC."""
    grpc_port: int = Field(default=4317, ge=0, le=limits.PORT_MAX)
    """Port for OTLP/gRPC."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that a server accepts, besides this machine's names and its address; `*` for any."""
    allowed_origins: tuple[str, ...] = ()
    """Sites whose pages may send traces, such as `https://shop.example`; `*` for any."""
    http_locations: tuple[str, ...] = ()
    """Locations that server requests may name for sources and the archive: directories, bucket prefixes, and brokers
    such as `kafka://broker:9092`; `*` for any. By default, only the lake's built-in archive."""
    tls_cert: str | None = None
    """Path of the server's certificate and its chain."""
    tls_key: str | None = None
    """Path of the certificate's key."""
    oidc_issuer: str | None = None
    """Issuer URL of the OpenID Connect provider for sign-in, exactly as the provider states it."""
    oidc_client_id: str | None = None
    """Client id of the server at the provider."""
    oidc_client_secret: SecretStr | None = None
    """Client secret of the server, if the provider has issued one."""
    oidc_client_secret_file: str | None = None
    """File that contains the client secret."""
    oidc_scopes: tuple[str, ...] = ("openid", "profile", "email")
    """Scopes that the server requests from the provider."""
    oidc_admit: tuple[Admit, ...] = ()
    """Admission rules: a claim, its value, and the role and workspace (`*`: all) of users who have it. The first
    match counts; in the environment a JSON list."""
    query_memory_bytes: int = Field(default=limits.QUERY_MEMORY_BYTES, ge=limits.QUERY_MEMORY_MIN_BYTES)
    """Memory limit of conditions and SQL."""
    pipeline_hang_s: float = Field(
        default=limits.PIPELINE_HANG_S, ge=limits.PIPELINE_HANG_MIN_S, allow_inf_nan=False
    )
    """Longest time without progress of a server's pipeline process; then the server kills it and starts another."""
    archive: bool = True
    """Whether a server runs archive passes automatically."""
    archive_interval_s: float = Field(
        default=limits.ARCHIVE_INTERVAL_S, ge=limits.ARCHIVE_INTERVAL_MIN_S, le=limits.ARCHIVE_INTERVAL_MAX_S
    )
    """Seconds between two archive passes."""
    transaction_rows: int | None = Field(default=None, ge=1, le=limits.TRANSACTION_ROWS_MAX)
    """Number of spans at which a continuous pipeline seals a transaction. Without this and the next setting, each step
    is a transaction, and a busy server's spans wait up to five seconds for more."""
    transaction_delay_s: float | None = Field(default=None, ge=0, le=limits.TRANSACTION_DELAY_MAX_S)
    """Longest wait of such a transaction for more spans."""
    client_timeout_s: float = Field(default=limits.CLIENT_TIMEOUT_S, gt=0, le=limits.CLIENT_TIMEOUT_MAX_S)
    """Longest silence of an explicit transaction's client, unless the client sets another."""
    client_when_gone: Literal["seal", "discard"] = "seal"
    """Fate of the client's transaction after such a silence, unless the client sets another."""
    journal_transactions: int = Field(default=limits.JOURNAL_TRANSACTIONS_KEPT, ge=1)
    """Number of newest transactions whose inputs `gc` keeps in the journal."""
    gc: bool = True
    """Whether servers and continuous pipelines collect garbage by themselves, once an hour."""
    erased_spans: Literal["refuse", "erase"] = "refuse"
    """Whether a server refuses late spans of erased traces, with partial success, or accepts and erases them."""
    history_age: str = "7d"
    """Time for which every state of the tables can be read, such as `12h` or `7d`; then commits of transactions expire.
    `none` keeps all."""
    history_daily: str = "30d"
    """Time for which the last commit of each day can be read; `none` for no such commits."""

    window: str = "1d"
    """Length of a window of ingest time, in UTC, such as `1d` or `6h`. Parts of different windows are never merged, so
    that old data is not rewritten and a time range reads only its windows. `none` merges without bounds."""
    spark_master: str | None = None
    """Spark master, such as `spark://host:7077` or `sc://host:15002`; by default that of `spark-submit` or of
    `spark-defaults.conf`, otherwise `local[*]`."""
    spark_conf: dict[str, str] = Field(default_factory=dict)
    """Spark settings by name, which override `spark-defaults.conf`; in the environment a JSON object."""
    watch: tuple[str, ...] = ()
    """Sources that pipelines watch besides the server's input: file patterns, buckets, Kafka topics."""


def load_settings() -> Settings:
    """Read the settings; the environment wins over the file. Raises UsageError if `tracelake.toml` is not TOML or has
    an unknown key, or if a value is invalid."""
    file = Path(SETTINGS_FILE)
    try:
        values = tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}
        for name, value in _environment().items():
            ours = values.get(name)
            is_object = isinstance(ours, dict) and isinstance(value, dict)
            values[name] = dict[str, Any](ours or {}, **value) if is_object else value
        return Settings(**values)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{SETTINGS_FILE} is not TOML: {error}. Correct it or remove it.") from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise UsageError(
            f"Settings cannot be used: {wrong}. Correct {SETTINGS_FILE} or the TRACELAKE_* variable."
        ) from error


def _environment() -> dict[str, Any]:
    """Return the settings in the environment. Lists and objects are JSON; an empty variable counts as unset."""
    values = dict[str, Any]()
    variables = {name.upper(): text for name, text in os.environ.items() if text}
    for name, field in Settings.model_fields.items():
        if (text := variables.get(variable := f"TRACELAKE_{name.upper()}")) is None:
            continue
        try:
            values[name] = json.loads(text) if get_origin(field.annotation) in (tuple, dict) else text
        except ValueError as error:
            raise UsageError(f"{variable} is not JSON: {error}. Correct it.") from error
    return values


def find_lake(explicit: str | None = None) -> str:
    """Return the lake to use: `explicit`, then TRACELAKE_LAKE, then `tracelake.toml`, then ./.tracelake.

    Only chooses the name; the caller checks whether the lake exists. Raises UsageError if the settings cannot be
    read.
    """
    return explicit or load_settings().lake or LAKE_DEFAULT


def find_metadata(explicit: str | None = None) -> str | None:
    """Return the requested metadata store: `explicit`, otherwise the setting, or None.

    Raises UsageError if the settings cannot be read.
    """
    return explicit or load_settings().metadata


def find_tracking_url(explicit: str | None = None) -> str | None:
    """Return the requested database of the tracking store: `explicit`, otherwise the setting, or None.

    Raises UsageError if the settings cannot be read.
    """
    return explicit or load_settings().tracking


def find_text(explicit: str | None = None) -> str:
    """Return the text analyzer of a new lake: `explicit`, otherwise the setting. Raises UsageError if the settings
    cannot be read."""
    return explicit or load_settings().text


def find_vectors(
    explicit: str | None = None, dimensions: int | None = None, metric: str | None = None
) -> tuple[str, int | None, str | None] | None:
    """Return the vector source of a new lake with its dimensions and metric, or None without vectors.

    The settings for dimensions and metric count only if the source is a setting too. Raises UsageError if dimensions or
    metric are given without a source.
    """
    if explicit is not None:
        return explicit, dimensions, metric
    settings = load_settings()
    dimensions = settings.vector_dimensions if dimensions is None else dimensions
    metric = metric or settings.vector_metric
    if settings.vectors is not None:
        return settings.vectors, dimensions, metric
    if (dimensions, metric) != (None, None):
        raise UsageError("dimensions and metric need an attribute with vectors; name it with vectors.")
    return None


def find_history(age: str | None = None, daily: str | None = None) -> tuple[float | None, float]:
    """Return the seconds for which all commits stay, None for ever, and for which one commit of each day stays.

    Raises UsageError if a duration, or the settings, cannot be read.
    """
    settings = load_settings() if age is None or daily is None else None
    age = age if age is not None or settings is None else settings.history_age
    daily = daily if daily is not None or settings is None else settings.history_daily
    age_s = None if age in (None, "none") else duration_ns(f"{age}") / 1e9
    return age_s, 0.0 if daily in (None, "none") else duration_ns(f"{daily}") / 1e9


def duration_ns(text: str, least: int = 1, most: int = 9_999_999) -> int:
    """Return a duration such as `30d` in nanoseconds: a number within bounds, then m, h or d. Raises UsageError for any
    other text."""
    match = _DURATION.fullmatch(text)
    if match is None or not least <= int(match[1]) <= most:
        raise UsageError(
            f"{text[: limits.NAME_QUOTED_MAX_CHARS]!r} is no duration: write a number from {least} to {most} and m, h "
            "or d, such as 30d"
        )
    return int(match[1]) * _UNITS_NS[match[2]]


def find_window() -> int | None:
    """Return the seconds of a window of ingest time, None without windows.

    Raises UsageError if the duration, or the settings, cannot be read.
    """
    window = load_settings().window
    return None if window == "none" else duration_ns(window) // 10**9


def find_watch(explicit: Sequence[str] | None = None) -> Sequence[str]:
    """Return the sources that a pipeline watches: `explicit`, otherwise the setting. Raises UsageError if the settings
    cannot be read."""
    return load_settings().watch if explicit is None else explicit


def find_committer(explicit: str | None = None) -> str:
    """Return the committer: `explicit`, then the setting, then the user of this process, then `unknown`.

    Raises UsageError if the settings cannot be read.
    """
    committer = explicit or load_settings().committer
    if committer:
        return committer
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run under a user id without a name
        return "unknown"
