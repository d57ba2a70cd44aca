"""Carries out the commit of a request: seal, build, cut, and help others on the way (see `protocol`)."""

from __future__ import annotations

import threading
import time

from msgspec.structs import replace

from tracelake._errors import DamageError, ExpiredError, IndeterminateError, StorageError
from tracelake.limits import (
    BRANCH_ANSWERS_KEPT,
    BRANCH_SEALED_MAX_BYTES,
    COMMIT_PATIENCE_POLLS,
    COMMIT_POLL_CROWDED_MAX_S,
    COMMIT_POLL_FIRST_S,
    COMMIT_POLL_MAX_S,
)
from tracelake.storage import Entry
from tracelake.versions import history
from tracelake.versions.branches import MAIN, BranchAt, BranchRecords, new_token, scope
from tracelake.versions.build import Reaches, build
from tracelake.versions.lookout import Lookout
from tracelake.versions.model import (
    EPOCH_UNSET,
    Announcement,
    Answer,
    BranchRecord,
    Commit,
    Request,
    to_bytes,
)
from tracelake.versions.objects import Contents
from tracelake.versions.protocol import (
    Refusal,
    RequestState,
    cut,
    kept,
    requests_in,
    seal,
    state_of,
    sweep,
    token_after,
    took,
)
from tracelake.versions.submission_protocol import (
    Build,
    Leave,
    Miss,
    PutOnList,
    Return,
    Seek,
    Submission,
    Wait,
    next_act,
)


class Committer:
    """Commits requests to branches. Holds nothing that another process would have to wait for."""

    def __init__(
        self,
        records: BranchRecords,
        contents: Contents,
        reaches: Reaches,
        *,
        patience_polls: int = COMMIT_PATIENCE_POLLS,
        answers_kept: int = BRANCH_ANSWERS_KEPT,
    ) -> None:
        """Use these stores; look `patience_polls` times whether another builds what is sealed, then help.

        At least `answers_kept` answers stay in the record of the branch.
        """
        self._records = records
        self._contents = contents
        self._reaches = reaches
        self._patience_polls = patience_polls
        self._lookout = Lookout(records)
        self._look_s = 0.0
        """What a look took of late."""
        self._sealing = threading.Lock()
        self._answers_kept = answers_kept

    def submit(self, branch: str, request: Request, at: BranchAt | None = None) -> Answer:
        """Get a request built, or find it built; return its answer.

        `at` is the branch as the caller read it last. A branch that is not there is made.
        """
        with self._lookout.joined():
            return self._carry_out(branch, request, at)

    def _carry_out(self, branch: str, request: Request, at: BranchAt | None) -> Answer:
        at = at or self._lookout.arrive(branch)
        here = scope(branch, at.record)
        known = Submission(request.id, here, since=at.record.head)
        has_sought = False
        try:
            while True:
                known = known.seen(at.record)
                act = next_act(
                    known,
                    at.record,
                    scope(branch, at.record),
                    is_there=not at.is_absent or branch == MAIN,
                    has_sought=has_sought,
                    patience_polls=self._patience_polls,
                )
                has_sought = isinstance(act, Seek)
                match act:
                    case Return(answer):
                        return answer
                    case Leave():
                        self._records.withdraw(here, [request.id])  # it may be later than the deletion
                        return Answer(request.id, refusal=Refusal.GONE)
                    case Miss():
                        raise _lost(branch, request)
                    case Seek():
                        answered = self._found(branch, at, request, known.since if known.is_known else None)
                        if answered is not None:
                            return answered
                        known = known.not_found(at.record)
                    case Wait(looks):
                        head = at.record.head
                        looked, at = self._wait(branch, at, known.looks, looks)
                        known = known.waited(looked, head_moved=at.record.head != head)
                    case Build():
                        at = self.finish(branch, at)
                    case PutOnList():
                        was_sealed, at = self._seal(branch, at, request, is_announced=known.is_announced)
                        if not was_sealed and not known.is_announced:
                            known = known.announced()
                            self._records.announce(here, Announcement(request, known.since))
                        known = known.put_on_list(was_sealed=was_sealed)
        except BaseException as error:
            self._end_in_error(branch, request, known, error)
            raise

    def _end_in_error(self, branch: str, request: Request, known: Submission, error: BaseException) -> None:
        """Take an announcement back. Raise IndeterminateError if a helper may still commit the request."""
        if known.is_announced:
            self._records.withdraw(known.scope, [request.id])
        if isinstance(error, StorageError) and may_be_committed(known, error):
            raise _unknown(branch, request, error) from error

    def finish(self, branch: str, at: BranchAt) -> BranchAt:
        """Build what is sealed and publish it, or find that another has; return the branch as it is then.

        The write that cuts what is built seals what is announced.
        """
        built = build(sweep(at.record), self._contents, self._records.layers, self._reaches)
        self._contents.write(built.records)
        count = len(built.answers)
        began = replace(at.record, sealed=at.record.sealed[:count])
        stay, leave = kept(began.done, built.answers, self._answers_kept)
        self._let_go(scope(branch, began), leave)
        carried: list[list[Entry]] = []
        while (record := cut(at.record, replace(began, epoch=built.epoch), built.head, stay)) is not None:
            if built.carried:
                to = token_after(at.record, count)
                carried.append(self._records.restage(built.carried, to))
            announced, stale = self._announced(branch, at)
            record = self._with(record, announced, at_least=0)
            published, at = self._records.swap(
                branch,
                at,
                record,
                is_mine=lambda there: state_of(there, built.answers[0].request) is RequestState.DONE,
            )
            if published:
                self._lookout.wake(branch)
                self._forget(branch, stale, announced, at.record)
                # Not before: who reads what is staged trusts that a token in the record is whole.
                for answer in leave:
                    self._records.unstage(answer.token)
                break  # where it was not, more was sealed: what is built stays right
        if took(at.record, built.answers[-1].request):  # in another helper, who saw more of it
            for entries in carried:
                self._records.take_away(entries)
        return at

    def _seal(
        self, branch: str, at: BranchAt, request: Request, *, is_announced: bool
    ) -> tuple[bool, BranchAt]:
        """Put a request on the list of the branch as it was read, and with it all that are announced."""
        if at.record.sealed and not is_announced:
            return False, at  # somebody builds, and its cut seals what is announced: meanwhile nobody races
        if not is_announced:
            return self._seal_now(branch, at, request)
        with self._sealing:  # of all threads that wait here one seals them all
            now = self._lookout.look(branch)
            return self._seal_now(branch, at, request) if now.version == at.version else (False, now)

    def _seal_now(self, branch: str, at: BranchAt, request: Request) -> tuple[bool, BranchAt]:
        announced, stale = self._announced(branch, at)
        waiting = [request, *(other for other in announced if other.id != request.id)]
        record = self._with(at.record, waiting)
        if len(to_bytes(record)) > BRANCH_SEALED_MAX_BYTES and at.record.sealed:
            return False, self.finish(branch, at)
        sealed, now = self._records.swap(
            branch, at, record, is_mine=lambda there: state_of(there, request.id) is not RequestState.UNKNOWN
        )
        if sealed:
            self._lookout.wake(branch)
            self._forget(branch, stale, announced, now.record)
        return sealed, now

    def _with(self, before: BranchRecord, waiting: list[Request], at_least: int = 1) -> BranchRecord:
        """Return a record with requests sealed: as many of them as it may hold, the first `at_least`."""
        token = new_token()
        # Read after the branch: whoever begins an epoch later finds the record, and changes it.
        epoch = self._records.epoch().number if before.epoch == EPOCH_UNSET else before.epoch
        record = seal(before, waiting, token, epoch)
        while len(to_bytes(record)) > BRANCH_SEALED_MAX_BYTES and len(waiting) > at_least:
            waiting = waiting[: len(waiting) // 2]
            record = seal(before, waiting, token, epoch)
        return record

    def _forget(self, branch: str, stale: list[str], announced: list[Request], record: BranchRecord) -> None:
        """Delete announcements that nobody needs any more, as the record says that is there now."""
        known = requests_in(record)
        over = [*stale, *(request.id for request in announced if request.id in known)]
        if over:
            self._records.withdraw(scope(branch, record), over)

    def _announced(self, branch: str, at: BranchAt) -> tuple[list[Request], list[str]]:
        """Return the announced requests that are to be sealed, and the ids of those that need it no more.

        The latter are of committers that were killed, or were sealed by one that was, or came late.
        """
        known = requests_in(at.record)
        wanted: list[Request] = []
        stale: list[str] = []
        for announcement in self._records.announced(scope(branch, at.record)):
            other = announcement.request
            try:
                is_wanted = (
                    other.id not in known and self._answered(branch, at, other, announcement.since) is None
                )
            except DamageError:
                continue  # its own committer is told: it keeps nobody else waiting
            (wanted.append(other) if is_wanted else stale.append(other.id))
        return wanted, stale

    def _found(self, branch: str, at: BranchAt, request: Request, since: str | None) -> Answer | None:
        """Return the answer to our own request; without `since`, nobody knows of it but perhaps an earlier try."""
        if since is not None:
            return self._answered(branch, at, request, since)
        return self._records.answer(scope(branch, at.record), request.id) if request.remembered else None

    def _answered(self, branch: str, at: BranchAt, request: Request, since: str) -> Answer | None:
        """Return the answer to a request that is not in the record, where it was there and has left it.

        It has if a commit after `since` carries it. Refusals, and answers to requests that may come twice,
        were recorded before they left; they are looked up after the branch was read. Not where all answers
        after `since` are in the record still: else N committers that seal would look up N requests each.
        """
        head, done = at.record.head, at.record.done
        is_covered = any(answer.commit == since and not answer.refusal for answer in done)
        if is_covered or (since == head and not done):
            return None
        if since != head:
            for commit_id, commit in history.log(head, self._commit):
                if commit_id == since:
                    break
                if commit.request == request.id:
                    return Answer(request.id, commit_id)
            else:
                if since:  # the branch was deleted, and made again
                    return Answer(request.id, refusal=Refusal.GONE)
        return self._records.answer(scope(branch, at.record), request.id)

    def _let_go(self, here: str, leave: tuple[Answer, ...]) -> None:
        """Keep answers that the history does not tell, or that a second try of a request may look for."""
        for answer in leave:
            if answer.refusal or answer.remembered:
                self._records.record_answer(here, answer)

    def _wait(self, branch: str, at: BranchAt, looks: int, most: int) -> tuple[int, BranchAt]:
        """Look again after growing pauses until the record has changed, `most` times; return how often, and it.

        Where a look takes long, because the store is far or many look, the pauses are as much longer: all who wait
        together look about once in the time that it takes, and leave the store to who builds.
        """
        now = at
        for looked in range(1, most + 1):
            crowded_s = min(COMMIT_POLL_CROWDED_MAX_S, self._look_s * len(at.record.sealed))
            pause_s = min(COMMIT_POLL_MAX_S, COMMIT_POLL_FIRST_S * 2 ** min(looks + looked, 16))
            self._lookout.pause(branch, max(pause_s, crowded_s))
            began_s = time.monotonic()
            now = self._lookout.look(branch)
            self._look_s += (time.monotonic() - began_s - self._look_s) / 4
            if now.version != at.version:
                return looked, now
        return most, now

    def _commit(self, commit_id: str) -> Commit:
        return self._contents.read(Commit, commit_id)


def may_be_committed(known: Submission, error: StorageError) -> bool:
    """Whether a request may get its commit although the call fails: a helper finishes what is on the list."""
    if isinstance(error, ExpiredError):
        return False  # of a request that was sealed, and was refused since
    return known.is_known or isinstance(error, IndeterminateError)


def _lost(branch: str, request: Request) -> ExpiredError:
    return ExpiredError(
        f"branch {branch}: request {request.id} was sealed, and there is neither a commit nor an answer. Where this "
        "process stood still for two garbage collections, it was refused: ask again. Else restore the metadata from a "
        "backup."
    )


def _unknown(branch: str, request: Request, error: StorageError) -> IndeterminateError:
    """Return the error for a request whose outcome the caller must ask for."""
    again = (
        f"Ask again with the same request id, {request.id} (`--request-id`, `request_id=`, or the header "
        "Idempotency-Key): that returns the commit, or makes it, but never twice. A request without this id may commit "
        "twice."
        if request.remembered
        else "Run the same again: it finds the commit, or makes it."
    )
    return IndeterminateError(
        f"branch {branch}: it is unknown whether the commit was made, because the store failed after it had begun "
        f"({error}). {again}"
    )
