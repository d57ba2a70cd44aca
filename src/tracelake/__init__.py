"""Trace lakehouse: captures every trace of your agents and services once, keeps it for good, and finds it again.

lake = tracelake.init("./lake")
lake.ingest("traces/*.otlp.jsonl.gz")
lake.search("refund policy")
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from tracelake._errors import (
    AccessError,
    BackPressureError,
    CommitExpiredError,
    ConflictError,
    ContentionError,
    DamagedRecordsError,
    DamageError,
    DatasetNotFoundError,
    DeathsError,
    DecodeError,
    EmbeddingError,
    ExpiredError,
    ForbiddenError,
    FormatError,
    IndeterminateError,
    InputError,
    InternalError,
    JavaError,
    LakeExistsError,
    LakeNotFoundError,
    LimitError,
    NoKeyError,
    NotFoundError,
    NothingToCommitError,
    ProviderError,
    QueryError,
    QuotaError,
    RecordsRemovedError,
    RefNotFoundError,
    SourceChangedError,
    StorageError,
    TableNotFoundError,
    TaskError,
    TracelakeError,
    TrimmedError,
    UnreadInputsError,
    UnsupportedError,
    UsageError,
)
from tracelake.results import (
    AddReport,
    BackupReport,
    BadInput,
    BranchInfo,
    CommitInfo,
    CompactReport,
    DatasetInfo,
    EntryChange,
    ErasureCheck,
    ErasureReport,
    ExpiredCommits,
    ExportReport,
    Finding,
    GcReport,
    InboxInfo,
    IndexInfo,
    IndexReport,
    IngestReport,
    MergeConflict,
    Problem,
    ReplicaInfo,
    RepricedModel,
    RepricingReport,
    RequestInfo,
    SetAsideInput,
    TableInfo,
    Trace,
    VerifyReport,
)
from tracelake.tasks.runners import Progress

if _TYPE_CHECKING:
    __version__: str
    from tracelake.archive.model import ArchiveDue, ArchiveReport, ArchiveSettings
    from tracelake.archive.service import ArchivedTrace, LakeArchive
    from tracelake.archive.store import ArchiveSpace
    from tracelake.datasets.dataset import Dataset
    from tracelake.datasets.examples import ExampleChange
    from tracelake.datasets.model import Example, Provenance
    from tracelake.datasets.runs import ComparedExample, EvaluationRun, ExampleResult, RunComparison, RunInfo
    from tracelake.lake.datasets import Datasets
    from tracelake.lake.lake import Lake, init, open
    from tracelake.lake.maintenance import Maintenance
    from tracelake.lake.sources import (
        LakeOutputs,
        LakeSources,
        LeftOutRow,
        OutputInfo,
        Quarantine,
        SourceInfo,
    )
    from tracelake.location import LakeConfig
    from tracelake.pipeline.continuous import InboxPipeline
    from tracelake.search.results import Facet, FacetValue, Hit, SearchResults
    from tracelake.search.vectors import Embedder, embedder
    from tracelake.tables.changes import Changes
    from tracelake.tables.table import Table
    from tracelake.tasks.runners import InProcess, TaskRunner
    from tracelake.versions.branch import Branch

__all__ = [
    "AccessError",
    "AddReport",
    "ArchiveDue",
    "ArchiveReport",
    "ArchiveSettings",
    "ArchiveSpace",
    "ArchivedTrace",
    "BackPressureError",
    "BackupReport",
    "BadInput",
    "Branch",
    "BranchInfo",
    "Changes",
    "CommitExpiredError",
    "CommitInfo",
    "CompactReport",
    "ComparedExample",
    "ConflictError",
    "ContentionError",
    "DamageError",
    "DamagedRecordsError",
    "Dataset",
    "DatasetInfo",
    "DatasetNotFoundError",
    "Datasets",
    "DeathsError",
    "DecodeError",
    "Embedder",
    "EmbeddingError",
    "EntryChange",
    "ErasureCheck",
    "ErasureReport",
    "Erasures",
    "EvaluationRun",
    "Example",
    "ExampleChange",
    "ExampleResult",
    "ExpiredCommits",
    "ExpiredError",
    "ExportReport",
    "Facet",
    "FacetValue",
    "Finding",
    "ForbiddenError",
    "FormatError",
    "GcReport",
    "Hit",
    "InProcess",
    "InboxInfo",
    "InboxPipeline",
    "IndeterminateError",
    "IndexInfo",
    "IndexReport",
    "IngestReport",
    "InputError",
    "InternalError",
    "JavaError",
    "Lake",
    "LakeArchive",
    "LakeConfig",
    "LakeExistsError",
    "LakeNotFoundError",
    "LakeOutputs",
    "LakeSources",
    "LeftOutRow",
    "LimitError",
    "Maintenance",
    "MergeConflict",
    "NoKeyError",
    "NotFoundError",
    "NothingToCommitError",
    "OutputInfo",
    "Problem",
    "Progress",
    "Provenance",
    "ProviderError",
    "Quarantine",
    "QueryError",
    "QuotaError",
    "RecordsRemovedError",
    "RefNotFoundError",
    "ReplicaInfo",
    "RepricedModel",
    "RepricingReport",
    "RequestInfo",
    "RunComparison",
    "RunInfo",
    "SearchResults",
    "SetAsideInput",
    "SourceChangedError",
    "SourceInfo",
    "StorageError",
    "Table",
    "TableInfo",
    "TableNotFoundError",
    "TaskError",
    "TaskRunner",
    "Trace",
    "TracelakeError",
    "TrimmedError",
    "UnreadInputsError",
    "UnsupportedError",
    "UsageError",
    "VerifyReport",
    "embedder",
    "init",
    "open",
]

_LAZY = {
    "Facet": "tracelake.search.results",
    "FacetValue": "tracelake.search.results",
    "Hit": "tracelake.search.results",
    "SearchResults": "tracelake.search.results",
    "ArchiveDue": "tracelake.archive.model",
    "ArchiveReport": "tracelake.archive.model",
    "ArchiveSettings": "tracelake.archive.model",
    "ArchiveSpace": "tracelake.archive.store",
    "ArchivedTrace": "tracelake.archive.service",
    "LakeArchive": "tracelake.archive.service",
    "Branch": "tracelake.versions.branch",
    "Changes": "tracelake.tables.changes",
    "Dataset": "tracelake.datasets.dataset",
    "Example": "tracelake.datasets.model",
    "ComparedExample": "tracelake.datasets.runs",
    "EvaluationRun": "tracelake.datasets.runs",
    "ExampleResult": "tracelake.datasets.runs",
    "RunComparison": "tracelake.datasets.runs",
    "RunInfo": "tracelake.datasets.runs",
    "ExampleChange": "tracelake.datasets.examples",
    "InProcess": "tracelake.tasks.runners",
    "InboxPipeline": "tracelake.pipeline.continuous",
    "Datasets": "tracelake.lake.datasets",
    "Lake": "tracelake.lake.lake",
    "LakeConfig": "tracelake.location",
    "Erasures": "tracelake.lake.erasure",
    "Maintenance": "tracelake.lake.maintenance",
    "Provenance": "tracelake.datasets.model",
    "LakeOutputs": "tracelake.lake.sources",
    "LakeSources": "tracelake.lake.sources",
    "LeftOutRow": "tracelake.lake.sources",
    "OutputInfo": "tracelake.lake.sources",
    "Quarantine": "tracelake.lake.sources",
    "SourceInfo": "tracelake.lake.sources",
    "Table": "tracelake.tables.table",
    "TaskRunner": "tracelake.tasks.runners",
    "Embedder": "tracelake.search.vectors",
    "embedder": "tracelake.search.vectors",
    "init": "tracelake.lake.lake",
    "open": "tracelake.lake.lake",
}


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__")), "__version__"])


def __getattr__(name: str) -> object:
    """Import modules that need DuckDB, Polars, tantivy or Spark on first use, so that commands start quickly."""
    if name == "__version__":
        return _import_module("importlib.metadata").version("tracelake")
    if name == "spark":
        return _import_module("tracelake.spark")
    if name in _LAZY:
        return getattr(_import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'tracelake' has no attribute {name!r}")
