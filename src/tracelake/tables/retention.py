"""Retention rules: how long the tables keep which traces. Records, their store, and decisions about traces.

A rule belongs to a workspace, or to all (`*`). Of the rules that match a trace, the one with the lowest priority number
decides for the whole trace; without a matching rule, the trace is kept forever. A trace matches if any of its spans
does. Its age counts from the end of its last span. In a trace that several workspaces share, the spans of each
workspace are decided separately, because no workspace may delete the spans of another.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Final

import msgspec

from tracelake._errors import NotFoundError, QueryError, UsageError
from tracelake._settings import duration_ns
from tracelake.access.keys import ALL_WORKSPACES
from tracelake.formats import decode, encode
from tracelake.limits import NAME_QUOTED_MAX_CHARS, RETENTION_RULES_MAX
from tracelake.otlp.conventions import EXPERIMENT
from tracelake.search.searcher import SearchRequest, check_request
from tracelake.storage import KeyValueStore
from tracelake.tables.scan import connection
from tracelake.tables.view import CommitView

FORMAT_VERSION: Final = 1
PARTITION: Final = "retention"
FOREVER: Final = "forever"
PRIORITY: Final = 100
"""Priority of a rule with a condition, unless the user sets one."""
LAST_PRIORITY: Final = 1_000
"""Priority of a rule for all traces."""
PRIORITY_MAX: Final = 1_000_000
DAY_NS: Final = 86_400 * 10**9
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_BATCH_TRACES: Final = 4_096
"""Traces whose rules are determined together."""


class RetentionRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A retention rule. Without a condition, it matches all traces of its workspace."""

    workspace: str
    """`*` for all workspaces."""
    name: str
    age: str
    """A duration such as `30d` or `1y`, or `forever`."""
    priority: int
    query: str = ""
    """A condition of the query language, such as `status:error`."""
    service: str = ""
    experiment: str = ""
    feedback: bool = False
    """Whether only traces with assessments match."""
    by: str = ""
    set_at: str = ""
    """ISO 8601, UTC."""
    format_version: int = FORMAT_VERSION

    @property
    def age_ns(self) -> int | None:
        """The age at which a trace is due; None for never."""
        return age_ns(self.age)

    @property
    def full_query(self) -> str:
        """The condition as one query; empty if the rule does not depend on the text of spans."""
        clauses = [f"({self.query})"] if self.query else []
        if self.service:
            clauses.append(f"service:{_quoted(self.service)}")
        return " ".join(clauses)

    @property
    def condition(self) -> str:
        """The condition for display."""
        clauses = [self.query] if self.query else []
        clauses += [f"service {self.service}"] if self.service else []
        clauses += [f"experiment {self.experiment}"] if self.experiment else []
        clauses += ["with feedback"] if self.feedback else []
        return " and ".join(clauses) or "all traces"

    def to_dict(self) -> dict[str, object]:
        """Return the rule as JSON shows it."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name != "format_version"}
        return {**fields, "condition": self.condition}

    def check(self) -> None:
        """Raise UsageError if the rule is invalid, QueryError if its condition does not parse."""
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"{self.name[:NAME_QUOTED_MAX_CHARS]!r} cannot be the name of a rule: use up to 63 letters and "
                "digits, with . _ - between them."
            )
        if not self.workspace or len(self.workspace) > 255:
            raise UsageError("a workspace has 1 to 255 characters; use * for all workspaces.")
        if not 0 <= self.priority <= PRIORITY_MAX:
            raise UsageError(
                f"a priority is a number from 0 to {PRIORITY_MAX:,}, not {self.priority}; lower numbers decide first."
            )
        age_ns(self.age)
        try:
            # Alone too: in parentheses, `a) OR (b` would parse.
            for query in (self.query or "*", self.full_query or "*"):
                check_request(SearchRequest(query, sort="newest"), 0)
        except QueryError as error:
            raise UsageError(f"the condition of rule {self.name} does not parse: {error}") from error


def age_ns(text: str) -> int | None:
    """Return an age in nanoseconds; None for `forever`. Raises UsageError for any other text."""
    if text == FOREVER:
        return None
    try:
        years = text.endswith("y") and text[:-1].isdecimal() and text.isascii()
        return 365 * duration_ns(f"{text[:-1]}d", most=1_000) if years else duration_ns(text)
    except UsageError as error:
        raise UsageError(
            f"{str(error).rstrip('.')}, or a number of years such as 1y, or {FOREVER}"
        ) from error


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def experiment_query(experiment: str) -> str:
    """Return the query for the spans that name an experiment."""
    paths = (f'resource."{EXPERIMENT}"', f'attributes."{EXPERIMENT}"')
    return " OR ".join(f"{path}:{_quoted(experiment)}" for path in paths)


class RetentionRules:
    """The stored rules of a lake. Several processes may use them at once."""

    def __init__(self, records: Callable[[], KeyValueStore]) -> None:
        self._records = records

    def all(self) -> list[RetentionRule]:
        """Return the rules of all workspaces, in the order in which they decide."""
        entries = self._records().scan(PARTITION, RULES_START, RULES_STOP)
        rules = (
            decode(RetentionRule, entry.value, f"retention rule {entry.key}", FORMAT_VERSION)
            for entry in entries
        )
        return in_order(rules)

    def set(self, rule: RetentionRule) -> None:
        """Add a rule, or replace the rule of that name in its workspace. Raises UsageError if it is invalid or there
        are too many rules."""
        rule.check()
        others = [
            each for each in self.all() if _key(each.workspace, each.name) != _key(rule.workspace, rule.name)
        ]
        if len(others) >= RETENTION_RULES_MAX:
            raise UsageError(
                f"this lake has RETENTION_RULES_MAX = {RETENTION_RULES_MAX} retention rules; remove one, or write "
                "conditions with OR."
            )
        self._records().set(PARTITION, _key(rule.workspace, rule.name), encode(rule))

    def remove(self, workspace: str, name: str) -> RetentionRule:
        """Remove a rule and return it. Raises NotFoundError if the workspace has no such rule."""
        for rule in self.all():
            if (rule.workspace, rule.name) == (workspace, name):
                self._records().erase(PARTITION, _key(workspace, name))
                return rule
        raise NotFoundError(
            f"workspace {workspace[:NAME_QUOTED_MAX_CHARS]!r} has no retention rule {name[:NAME_QUOTED_MAX_CHARS]!r}; "
            "`tracelake retention list` shows all."
        )


RULES_START: Final = "rules/"
RULES_STOP: Final = "rules0"


def _key(workspace: str, name: str) -> str:
    """Return the key of a rule. No key is a prefix of another."""
    digest = hashlib.sha256(workspace.encode(errors="replace")).hexdigest()[:16]
    return f"{RULES_START}{digest}/{name}/"


# Decisions. Pure.


@dataclass(frozen=True, slots=True)
class Candidate:
    """The spans of one workspace in a trace whose last span is old enough for the shortest age."""

    trace_id: str
    workspace: str
    end_ns: int
    """End of the last span of the whole trace."""
    spans: int


@dataclass(frozen=True, slots=True)
class DueTrace:
    """A candidate that a rule deletes."""

    candidate: Candidate
    rule: RetentionRule


def in_order(rules: Iterable[RetentionRule]) -> list[RetentionRule]:
    """Return rules in the order in which they decide. At the same priority, those of a workspace precede those of
    all."""
    return sorted(
        rules, key=lambda rule: (rule.priority, rule.workspace == ALL_WORKSPACES, rule.workspace, rule.name)
    )


def of_workspace(rules: Iterable[RetentionRule], workspace: str) -> list[RetentionRule]:
    """Return the rules that apply to a workspace, in order."""
    return [rule for rule in rules if rule.workspace in (workspace, ALL_WORKSPACES)]


def newest_due_ns(rules: Iterable[RetentionRule], now_ns: int) -> int | None:
    """Return the time at or before which the last span of a trace ended if any rule could delete it; None if no rule
    deletes anything."""
    return max((now_ns - rule.age_ns for rule in rules if rule.age_ns is not None), default=None)


def is_due(rule: RetentionRule | None, end_ns: int, now_ns: int) -> bool:
    """Return whether a trace goes, given the rule that decides about it and the end of its last span."""
    return rule is not None and rule.age_ns is not None and end_ns <= now_ns - rule.age_ns


def first_match(
    rules: Sequence[RetentionRule], matching: Sequence[Set[str]], trace_id: str
) -> RetentionRule | None:
    """Return the first of the ordered rules that matches a trace. `matching` are the matching traces of each rule."""
    return next((rule for rule, ids in zip(rules, matching, strict=True) if trace_id in ids), None)


def requests(
    due: Iterable[DueTrace], traces_max: int, spans_max: int
) -> Iterator[tuple[str, list[DueTrace]]]:
    """Yield the traces of each deletion request with its workspace. A request is bounded, and never has part of the
    spans that a workspace has in a trace."""
    open_requests: dict[str, list[DueTrace]] = {}
    spans: Counter[str] = Counter()
    for each in due:
        workspace = each.candidate.workspace
        batch = open_requests.setdefault(workspace, [])
        if batch and (len(batch) >= traces_max or spans[workspace] + each.candidate.spans > spans_max):
            yield workspace, batch
            batch = open_requests[workspace] = []
            spans[workspace] = 0
        batch.append(each)
        spans[workspace] += each.candidate.spans
    yield from ((workspace, batch) for workspace, batch in open_requests.items() if batch)


# Evaluation


@dataclass
class Evaluation:
    """Traces at one commit with the rules that decide about them."""

    view: CommitView
    buckets: int
    rules: Sequence[RetentionRule]
    now_ns: int
    with_feedback: Callable[[str, Sequence[str]], Set[str]]
    """Returns those of a workspace's traces that have assessments."""
    in_experiment: Callable[[str, Sequence[str]], Set[str]]
    """Returns those of the given traces that clients assigned to an experiment."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Traces that stay whatever the rules say, with the reason."""
    reserved: Counter[str] = field(default_factory=Counter)
    """Due traces that stay, counted by reason."""

    def due(self) -> Iterator[DueTrace]:
        """Yield the traces that rules delete, a bucket of the tables at a time."""
        before_ns = newest_due_ns(self.rules, self.now_ns)
        if before_ns is None:
            return
        batch: list[Candidate] = []
        for candidate in self._candidates(before_ns):
            batch.append(candidate)
            if len(batch) >= _BATCH_TRACES:
                yield from self._decide(batch, before_ns)
                batch = []
        yield from self._decide(batch, before_ns)

    def _candidates(self, before_ns: int) -> Iterator[Candidate]:
        """Yield the traces whose last span ended by a time. Parts of the tables with only later spans are skipped."""
        spans, traces = self.view.table("spans"), self.view.table("traces")
        for bucket in range(self.buckets):
            old = traces.bucket_sql(bucket, f"end_ns <= {before_ns}", ["trace_id", "end_ns"])
            rows = spans.bucket_sql(bucket, f"start_ns <= {before_ns}", ["trace_id", "workspace"])
            if old is None or rows is None:
                continue
            query = (
                "select trace_id, workspace, any_value(end_ns) as end_ns, count(*) as spans "
                f"from ({rows}) join ({old}) using (trace_id) group by trace_id, workspace"
            )
            with connection() as db:
                for batch in db.sql(query).to_arrow_reader(_BATCH_TRACES):
                    columns = (
                        batch.column(name).to_pylist()
                        for name in ("trace_id", "workspace", "end_ns", "spans")
                    )
                    yield from (Candidate(*row) for row in zip(*columns, strict=True))

    def _decide(self, batch: Sequence[Candidate], before_ns: int) -> Iterator[DueTrace]:
        for workspace in sorted({candidate.workspace for candidate in batch}):
            own = [candidate for candidate in batch if candidate.workspace == workspace]
            rules = of_workspace(self.rules, workspace)
            matching: list[Set[str]] = []
            undecided = {candidate.trace_id for candidate in own}
            for rule in rules:
                matching.append(self._matching(rule, workspace, undecided, before_ns))
                undecided = undecided - matching[-1]
            for candidate in own:
                decisive = first_match(rules, matching, candidate.trace_id)
                if decisive is None or not is_due(decisive, candidate.end_ns, self.now_ns):
                    continue
                if (reason := self.excluded.get(candidate.trace_id)) is not None:
                    self.reserved[reason] += 1
                    continue
                yield DueTrace(candidate, decisive)

    def _matching(self, rule: RetentionRule, workspace: str, trace_ids: Set[str], before_ns: int) -> Set[str]:
        """Return those of the traces that a rule matches."""
        if trace_ids and rule.full_query:
            trace_ids = self._searched(rule.full_query, workspace, trace_ids, before_ns)
        if trace_ids and rule.experiment:
            labelled = self._searched(experiment_query(rule.experiment), workspace, trace_ids, before_ns)
            trace_ids = labelled | self.in_experiment(rule.experiment, sorted(trace_ids))
        if trace_ids and rule.feedback:
            trace_ids = self.with_feedback(workspace, sorted(trace_ids))
        return trace_ids

    def _searched(self, query: str, workspace: str, trace_ids: Set[str], before_ns: int) -> Set[str]:
        searcher = self.view.open_searcher()
        if searcher is None:
            return frozenset()
        # Parts of the index with only later spans are skipped.
        until = datetime.fromtimestamp(before_ns // 10**9 + 1, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return searcher.matching_traces(trace_ids, f"({query}) start<={until}", None, self.now_ns, workspace)


def day_of(end_ns: int) -> str:
    """Return the UTC day of a time, for reports."""
    return date.fromordinal(date(1970, 1, 1).toordinal() + end_ns // DAY_NS).isoformat()
