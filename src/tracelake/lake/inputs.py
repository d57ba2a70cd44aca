"""What brings spans into a lake: files that are named, and the pipeline of what is received and watched."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from tracelake.lake.opened import OpenLake
from tracelake.lake.pipelines import inbox_pipeline, ingest, replicas
from tracelake.lake.quarantine import Quarantine
from tracelake.lake.transactions import Transactions
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.results import InboxInfo, IngestReport, ReplicaInfo
from tracelake.tasks.progress import OnProgress, silent
from tracelake.tasks.runners import TaskRunner
from tracelake.tracking.inbox import inbox_info


class WithInputs:
    """What a lake has of its inputs."""

    _opened: OpenLake
    transactions: Transactions
    quarantine: Quarantine

    def ingest(
        self,
        *patterns: str | os.PathLike[str],
        transaction_bytes: int | None = None,
        transaction: str | None = None,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        runner: TaskRunner | None = None,
        progress: OnProgress | None = None,
    ) -> IngestReport:
        """Read OTLP files, and make them part of the tables, each span once.

        Whatever an earlier run left unfinished is finished first. A file that cannot be read, or parts of
        it, end up in the report's `bad`; all else goes in.

        Args:
            patterns: files, or objects such as `s3://bucket/key`, or glob patterns of either.
            transaction_bytes: input bytes, as stored, of one transaction at most; 64 MiB by default.
            transaction: the id of an open explicit transaction: the files go into it, or nowhere. By default the one
                that this object has begun and not ended, if any.
            master, conf: Spark master, `local[*]` by default, and settings of Spark. A lake in memory takes none: its
                tasks run here.
            runner: run the tasks there instead of on Spark.
            progress: is told what is going on.

        Raises:
            UsageError: a pattern matches nothing, or names the lake's own objects; the explicit transaction is over; or
                another client's is open.
            StorageError: a bucket cannot be listed.
            SourceChangedError: an unfinished transaction cannot be replayed: its input has changed.
        """
        chosen = self._opened.runner(runner, master, conf)
        tell = progress or silent
        if transaction is None:
            transaction = self.transactions.own
        if transaction is None:
            self.transactions.finish_ended(runner, master)
            return ingest(self._opened, patterns, transaction_bytes, chosen, tell)
        tell = self.transactions.alive(transaction, tell)
        return ingest(self._opened, patterns, transaction_bytes, chosen, tell, transaction)

    def pipeline(
        self,
        *,
        replica: str | None = None,
        watch: Sequence[str] | None = None,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        runner: TaskRunner | None = None,
    ) -> InboxPipeline:
        """Return the pipeline that takes what the server received; call its `run_once` again and again.

        Any number of them may work on one lake at once, in this process or others.

        Args:
            replica: its name, which no other should have; host and process id by default.
            watch: glob patterns of files or buckets, and topics (`kafka://broker:9092/topic`), by default the setting.
            master, conf, runner: as for `ingest`.
        """
        chosen = self._opened.lasting_runner(runner, master, conf)
        return inbox_pipeline(self._opened, chosen, replica, watch)

    def replicas(self) -> list[ReplicaInfo]:
        """Return the replicas of the pipeline that work on the lake, or did until they were cut off; by name."""
        return replicas(self._opened)

    def inbox(self) -> InboxInfo:
        """Return what waits in the inbox of servers."""
        return inbox_info(self._opened.objects, self.quarantine.paths())
