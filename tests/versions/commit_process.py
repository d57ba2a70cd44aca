"""Process that commits requests one by one and prints the answers, until a test kills it.

python -m tests.versions.commit_process RECORDS OBJECTS NAME FIRST COUNT
"""

from __future__ import annotations

import sys

from tracelake.storage import open_key_value, open_objects
from tracelake.versions.model import FileAt
from tracelake.versions.repository import Repository


def main(records: str, objects: str, name: str, first: str, count: str) -> None:
    """Commit the requests NAME-FIRST and on; print each with its commit."""
    repository = Repository(open_key_value(records), open_objects(objects))
    print("ready", flush=True)
    for number in range(int(first), int(count)):
        request = f"{name}-{number}"
        entry = {f"c/{request}": FileAt("0" * 64, number)}
        print(
            request, repository.commit_entries(entry, message=f"c/{request}", request_id=request), flush=True
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
