"""The sequential model of a branch: it watches the record after every write, and replays the answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tests.simulation.scenarios import require
from tracelake.storage import Version
from tracelake.testing import Run
from tracelake.versions.branch_store import BranchRecords
from tracelake.versions.model import (
    TRANSACTION,
    Answer,
    BranchRecord,
    Change,
    ChangeSet,
    CherryPick,
    Commit,
    MergeRequest,
    Metarange,
    PathChanges,
    Range,
    Reference,
    Request,
    Revert,
    SealedRequest,
    TableAt,
    content_id,
    from_bytes,
)
from tracelake.versions.tree import ContentT, log, path_of

COMMIT, NOTHING, CONFLICT, FAILED, DROPPED = "", "nothing", "conflict", "failed", "dropped"
"""Results of a request."""
Entries = Mapping[str, Reference]
Allowed = Sequence[Reference | None]
Options = Mapping[str, Allowed]
"""Allowed entries of each path that a request changes: more than one if a writer of it was late."""


_DECODED: dict[tuple[type, str, bytes], object] = {}
"""Decoded objects of all runs by their bytes, because many runs write the same."""


def read(run: Run, kind: type[ContentT], record_id: str) -> ContentT:
    """Read a stored object directly, without the code under test."""
    path = path_of(kind, record_id)
    require(path in run.objects.objects, f"{path} is named, and not there")
    data = run.objects.objects[path][0]
    found = _DECODED.get((kind, record_id, data))
    if not isinstance(found, kind):
        require(content_id(data) == record_id, f"{path} is not what was written")
        found = _DECODED[kind, record_id, data] = from_bytes(kind, data, path)
    return found


def entries_of(run: Run, commit_id: str) -> Entries:
    """Return all entries of a commit; all objects on the way must exist."""
    if not commit_id:
        return {}
    commit = read(run, Commit, commit_id)
    if commit.changes is not None:
        changed = {**entries_of(run, commit.parents[0] if commit.parents else ""), **dict(commit.changes)}
        return {path: named for path, named in changed.items() if named is not None}
    metarange = read(run, Metarange, commit.metarange)
    return dict(entry for ref in metarange.ranges for entry in read(run, Range, ref.id).entries)


def ancestors(run: Run, commit_id: str) -> set[str]:
    """Return a commit and all its ancestors, by all parents."""
    found: set[str] = set()
    todo = [commit_id] if commit_id else []
    while todo:
        if (at := todo.pop()) not in found:
            found.add(at)
            todo += read(run, Commit, at).parents
    return found


def common_ancestor(run: Run, left: str, right: str) -> str:
    """Return the lowest common ancestor; the scenarios have one at most."""
    common = ancestors(run, left) & ancestors(run, right)
    best = [one for one in common if not any(one in ancestors(run, other) for other in common - {one})]
    require(len(best) <= 1, "the model knows no criss-cross merges")
    return best[0] if best else ""


class BranchModel:
    """Expected state of a branch: the requests on its list, in order, each applied to the entries before it."""

    def __init__(self, name: str, run: Run) -> None:
        """Begin with the current branch."""
        self.name = name
        self._run = run
        record, self._version = self._record()
        self.head = record.head
        self.entries = entries_of(self._run, self.head)
        self.history = [at for at, _ in log(self.head, lambda at: read(self._run, Commit, at))][::-1]
        self.moves = 0
        """Successful writes of the record, by any actor."""
        self.sealed: dict[str, SealedRequest] = {}
        """All requests that were ever on the list."""
        self.answers = {answer.request: answer for answer in record.done}
        self._listed: list[str] = []
        self._at_seal: dict[str, dict[str, Reference | None]] = {}
        self._late: dict[tuple[str, str], list[Reference | None]] = {}
        """Entries staged after the token was sealed, by token and path."""

    def watch(self) -> None:
        """Check the stores after a write. Raises Violation for an impossible state."""
        self._watch_late()
        record, version = self._record()
        if version == self._version:
            return
        self._version = version
        self.moves += 1
        for answer in record.done:
            if answer.request not in self.answers:
                self._replay(answer)
        require(record.head == self.head, "the head is not the commit of the last answer")
        self._watch_list(record)

    def _record(self) -> tuple[BranchRecord, Version]:
        entry = self._run.key_value.get("branches", self.name)
        return (
            (BranchRecord(), "")
            if entry is None
            else (from_bytes(BranchRecord, entry.value, self.name), entry.version)
        )

    def _watch_list(self, record: BranchRecord) -> None:
        waiting = [request for request in self._listed if request not in self.answers]
        self._listed = [sealed.request.id for sealed in record.sealed]
        require(self._listed[: len(waiting)] == waiting, "a request left the list, or changed its place")
        for sealed in record.sealed:
            request = sealed.request.id
            require(request not in self.answers, f"request {request} is on the list again")
            require(self.sealed.setdefault(request, sealed) == sealed, f"request {request} has changed")
            if sealed.token and sealed.token not in self._at_seal:
                self._at_seal[sealed.token] = dict(staged(self._run, sealed.token))
        tokens = [sealed.token for sealed in record.sealed if sealed.token]
        require(len({record.staging, *tokens}) == len(tokens) + 1, "a token is used again")

    def _watch_late(self) -> None:
        for token, at_seal in self._at_seal.items():
            for path, named in staged(self._run, token):
                seen = self._late.setdefault((token, path), [])
                if at_seal.get(path, ...) != named and named not in seen:
                    seen.append(named)

    # Replaying

    def _replay(self, answer: Answer) -> None:
        require(answer.request in self.sealed, f"request {answer.request} was answered, and never sealed")
        sealed = self.sealed[answer.request]
        request = sealed.request
        self.answers[answer.request] = answer
        outcomes, options = self._expected(sealed)
        if request.id.startswith("drop-") and answer.refusal == DROPPED:
            outcomes = (DROPPED,)
        require(answer.refusal in outcomes, f"{request.id}: {answer.refusal or 'a commit'}, not {outcomes}")
        if answer.refusal:
            require(answer.commit == self.head, f"{request.id} was refused at another head")
        else:
            self._replay_commit(request, answer.commit, options)

    def _replay_commit(self, request: Request, commit_id: str, options: Options) -> None:
        commit, found = read(self._run, Commit, commit_id), entries_of(self._run, commit_id)
        merged = (request.operation.commit,) if isinstance(request.operation, MergeRequest) else ()
        require(commit.parents == ((self.head,) if self.head else ()) + merged, "the history is not linear")
        said = (commit.request, commit.message, commit.created_at)
        require(said == (request.id, request.message, request.created_at), "a commit says something else")
        for path in {*found, *self.entries, *options}:
            allowed = options.get(path, (self.entries.get(path),))
            require(found.get(path) in allowed, f"{request.id}: {path} is {found.get(path)}, not {allowed}")
        if TRANSACTION in commit.metadata:
            before = [read(self._run, Commit, other).metadata.get(TRANSACTION) for other in self.history]
            number = sum(other is not None for other in before)
            require(commit.metadata[TRANSACTION] == str(number), f"transaction {number} has no commit")
        self.head, self.entries = commit_id, found
        self.history.append(commit_id)

    def _expected(self, sealed: SealedRequest) -> tuple[tuple[str, ...], Options]:
        """Return the allowed refusals, empty for a commit, and the allowed entries of each path after a commit."""
        operation = sealed.request.operation
        if sealed.request.metadata.get(TRANSACTION, "0") == "none":
            return (FAILED,), {}
        if isinstance(operation, Change):
            changes = self._changes(sealed)
            options: Options = {path: self._forward(path, to, operation) for path, to in changes}
        else:
            before, after = self._sides(operation)
            if isinstance(operation, MergeRequest) and before == after:
                return (NOTHING,), {}
            prefer = operation.prefer if isinstance(operation, MergeRequest) else ""
            sides = (entries_of(self._run, before), self.entries, entries_of(self._run, after))
            if (merged := three_way(*sides, prefer)) is None:
                return (CONFLICT,), {}
            options = merged
        is_same = all(self.entries.get(path) in allowed for path, allowed in options.items())
        if sealed.request.allow_empty or isinstance(operation, MergeRequest) or not is_same:
            return (COMMIT,), options
        return (NOTHING,) if all(len(allowed) == 1 for allowed in options.values()) else (
            COMMIT,
            NOTHING,
        ), options

    def _sides(self, operation: MergeRequest | Revert | CherryPick) -> tuple[str, str]:
        """Return the base and target commits of the change."""
        if isinstance(operation, MergeRequest):
            return common_ancestor(self._run, self.head, operation.commit), operation.commit
        parents = read(self._run, Commit, operation.commit).parents
        sides = parents[operation.parent] if parents else "", operation.commit
        return sides if isinstance(operation, CherryPick) else sides[::-1]

    def _forward(self, path: str, allowed: Allowed, change: Change) -> Allowed:
        now, wanted = self.entries.get(path), allowed[0]
        if change.forward and isinstance(now, TableAt) and isinstance(wanted, TableAt):
            return (now,) if now.as_of > wanted.as_of else allowed
        return allowed

    def _changes(self, sealed: SealedRequest) -> Iterator[tuple[str, Allowed]]:
        change = sealed.request.operation
        assert isinstance(change, Change)
        at_seal = self._at_seal.get(sealed.token, {})
        for path, named in at_seal.items():
            yield path, (named, *self._late.get((sealed.token, path), ()))
        for (token, path), late in self._late.items():
            if token == sealed.token and late and path not in at_seal:
                yield path, (self.entries.get(path), *late)
        listed = [entry for made in change.objects for entry in read(self._run, ChangeSet, made).entries]
        yield from ((path, (named,)) for path, named in (*listed, *change.entries))


def three_way(base: Entries, ours: Entries, theirs: Entries, prefer: str) -> Options | None:
    """Return a merge's changes on our side; None if both changed an entry and no side is preferred."""
    options: dict[str, tuple[Reference | None]] = {}
    for path in {*base, *theirs}:
        was, mine, new = base.get(path), ours.get(path), theirs.get(path)
        if new in (was, mine):
            continue
        if mine != was and not prefer:
            return None
        if mine == was or prefer == "source":
            options[path] = (new,)
    return options


def staged(run: Run, token: str) -> PathChanges:
    """Return the entries under a token."""
    return BranchRecords(run.direct_key_value).staged(token)
