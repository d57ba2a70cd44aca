"""Reading back the inbox, for `tracelake verify`."""

from __future__ import annotations

from collections.abc import Iterator

from tracelake._errors import DamageError, NotFoundError
from tracelake.otlp.framing import segment_problem
from tracelake.results import Finding, Problem
from tracelake.storage import ObjectStore
from tracelake.tracking.inbox import PREFIX


def check_inbox(objects: ObjectStore) -> Iterator[Finding]:
    """Yield what is wrong with segments that no transaction has taken; one that goes meanwhile is taken."""
    for info in list(objects.list(PREFIX)):
        try:
            problem = segment_problem(objects.get(info.path))
        except NotFoundError:
            continue
        except DamageError as error:
            problem = Problem(str(error))
        if problem is not None:
            yield Finding("damaged", "segment", info.path, str(problem))
