"""The one settings model: TRACELAKE_* in the environment, then `tracelake.toml` in this directory."""

from __future__ import annotations

import getpass
import tomllib
from collections.abc import Sequence
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from tracelake import limits
from tracelake._errors import UsageError

SETTINGS_FILE: Final = "tracelake.toml"
LAKE_DEFAULT: Final = "./.tracelake"


class Admit(BaseModel):
    """Who has this value in this claim is let in, as this."""

    model_config = ConfigDict(extra="forbid")

    claim: str = Field(min_length=1)
    value: str = Field(min_length=1)
    role: Literal["read", "annotate", "admin"]
    workspace: str = Field(min_length=1)


class Settings(BaseSettings):
    """What can be set outside of a command line. Names in the environment carry the prefix TRACELAKE_."""

    model_config = SettingsConfigDict(
        env_prefix="TRACELAKE_", env_ignore_empty=True, toml_file=SETTINGS_FILE, extra="forbid"
    )

    lake: str | None = None
    """Directory or URL of the lake; a relative one counts from the current directory."""
    metadata: str | None = None
    """URL of the key-value store of the lake's metadata, where that is not where its `lake.json` says."""
    tracking: str | None = None
    """URL of the database of the tracking store, where that is not in the lake's directory, or not where its
    `tracking.json` says."""
    text: str = "english"
    """How texts become words in the full-text index of lakes that are made."""
    vectors: str | None = None
    """What the vectors of lakes that are made are of: `module:function`, `attributes.KEY`, or `none`."""
    vector_dimensions: int | None = None
    """Numbers of each vector of an attribute."""
    vector_metric: str | None = None
    """How vectors of an attribute are compared."""
    committer: str | None = None
    """Who commits, for commits that people make; the name of the user by default."""
    segment_wait_s: float = Field(default=limits.SEGMENT_WAIT_S, ge=0, le=limits.INBOX_ACK_TIMEOUT_S / 2)
    """How long a request to the server waits at most for others that come, to share a segment of the inbox."""
    segment_max_bytes: int = Field(
        default=limits.INBOX_SEGMENT_MAX_BYTES, ge=1, le=limits.INBOX_QUEUE_MAX_BYTES
    )
    """Payload of a segment; one request alone may have more."""
    grpc: bool = True
    """Whether a server takes OTLP/gRPC."""
    grpc_port: int = Field(default=4317, ge=0, le=limits.PORT_MAX)
    """The port that it does so on."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that a server answers to, besides those of this machine and its address; `*` for any."""
    allowed_origins: tuple[str, ...] = ()
    """Sites whose pages may send traces, such as `https://shop.example`; `*` for any."""
    http_locations: tuple[str, ...] = ()
    """Locations that requests to a server may name for sources and the archive: directories, prefixes of buckets, and
    brokers such as `kafka://broker:9092`; `*` for any. By default the lake's own archive alone."""
    tls_cert: str | None = None
    """Path of the certificate of a server, and of those that vouch for it."""
    tls_key: str | None = None
    """Path of its key."""
    oidc_issuer: str | None = None
    """The OpenID Connect provider by which people sign in to a server: its address, as it calls itself."""
    oidc_client_id: str | None = None
    """What the provider calls the server."""
    oidc_client_secret: SecretStr | None = None
    """What the server shows to the provider, where that has given it a secret."""
    oidc_client_secret_file: str | None = None
    """The file that has it."""
    oidc_scopes: tuple[str, ...] = ("openid", "profile", "email")
    """What the provider is asked to tell of a person."""
    oidc_admit: tuple[Admit, ...] = ()
    """Who is let in: a claim and its value, and for those who have it a role and a workspace (`*`: all). The first that
    fits counts; in the environment a JSON list."""
    pipeline_hang_s: float = Field(
        default=limits.PIPELINE_HANG_S, ge=limits.PIPELINE_HANG_MIN_S, allow_inf_nan=False
    )
    """How long the process of a server's pipeline may make no step; then it is killed, and another begun."""
    archive: bool = True
    """Whether a server makes archive passes by itself."""
    archive_interval_s: float = Field(
        default=limits.ARCHIVE_INTERVAL_S, ge=limits.ARCHIVE_INTERVAL_MIN_S, le=limits.ARCHIVE_INTERVAL_MAX_S
    )
    """Seconds between two of them."""
    transaction_rows: int | None = Field(default=None, ge=1, le=limits.TRANSACTION_ROWS_MAX)
    """With how many spans a pipeline that goes on seals a transaction; without it and the next, after each step."""
    transaction_delay_s: float | None = Field(default=None, ge=0, le=limits.TRANSACTION_DELAY_MAX_S)
    """How long such a transaction waits for more at most."""
    client_timeout_s: float = Field(default=limits.CLIENT_TIMEOUT_S, gt=0, le=limits.CLIENT_TIMEOUT_MAX_S)
    """How long the client of an explicit transaction may show nothing of itself, where it does not say."""
    client_when_gone: Literal["seal", "discard"] = "seal"
    """What becomes of its transaction then, where it does not say."""
    journal_transactions: int = Field(default=limits.JOURNAL_TRANSACTIONS_KEPT, ge=1)
    """Of how many transactions, the newest, `gc` leaves in the journal what they read."""

    spark_master: str | None = None
    """Spark master, such as `spark://host:7077` or `sc://host:15002`; else that of `spark-submit` or of
    `spark-defaults.conf`, else `local[*]`."""
    spark_conf: dict[str, str] = Field(default_factory=dict)
    """Settings of Spark by name, before those of `spark-defaults.conf`; in the environment a JSON object."""
    watch: tuple[str, ...] = ()
    """What pipelines watch besides what servers receive: patterns of files, buckets, topics of Kafka."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  the signature is pydantic's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read arguments, then the environment, then the file: the first that has a value wins."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load_settings() -> Settings:
    """Read the settings. Raises UsageError where `tracelake.toml` is not TOML or has an unknown key."""
    try:
        return Settings()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{SETTINGS_FILE} is not TOML: {error}. Correct it or remove it.") from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise UsageError(
            f"Settings cannot be used: {wrong}. Correct {SETTINGS_FILE} or the TRACELAKE_* variable."
        ) from error


def find_lake(explicit: str | None = None) -> str:
    """Return the lake to use: `explicit`, else TRACELAKE_LAKE, else `tracelake.toml`, else ./.tracelake.

    Only chooses the name; whether a lake is there is for the caller to find out.
    Raises UsageError where the settings cannot be read.
    """
    return explicit or load_settings().lake or LAKE_DEFAULT


def find_metadata(explicit: str | None = None) -> str | None:
    """Return the metadata store that is asked for: `explicit`, else the setting; None where none is.

    Raises UsageError where the settings cannot be read.
    """
    return explicit or load_settings().metadata


def find_tracking_url(explicit: str | None = None) -> str | None:
    """Return the database that is asked for, for the tracking store: `explicit`, else the setting; None where none is.

    Raises UsageError where the settings cannot be read.
    """
    return explicit or load_settings().tracking


def find_text(explicit: str | None = None) -> str:
    """Return how texts become words in a new lake: `explicit`, else the setting. Raises UsageError."""
    return explicit or load_settings().text


def find_vectors(
    explicit: str | None = None, dimensions: int | None = None, metric: str | None = None
) -> tuple[str, int | None, str | None] | None:
    """Return what vectors of a new lake are of, their dimensions and metric; None where nobody asks for any.

    What is said of an attribute goes with it: the settings of both count only where the attribute is a setting too.
    Raises UsageError.
    """
    if explicit is not None:
        return explicit, dimensions, metric
    settings = load_settings()
    dimensions = settings.vector_dimensions if dimensions is None else dimensions
    metric = metric or settings.vector_metric
    if settings.vectors is not None:
        return settings.vectors, dimensions, metric
    if (dimensions, metric) != (None, None):
        raise UsageError("dimensions and metric are of vectors in an attribute; say which, with vectors.")
    return None


def find_watch(explicit: Sequence[str] | None = None) -> Sequence[str]:
    """Return what a pipeline watches: `explicit`, else the setting. Raises UsageError."""
    return load_settings().watch if explicit is None else explicit


def find_committer(explicit: str | None = None) -> str:
    """Return who commits: `explicit`, else the setting, else the user of this process, else `unknown`.

    Raises UsageError where the settings cannot be read.
    """
    committer = explicit or load_settings().committer
    if committer:
        return committer
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run as a user without a name
        return "unknown"
