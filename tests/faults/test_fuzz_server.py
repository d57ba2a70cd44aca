"""A short run of the requests that nobody meant; `make fuzz N=100000` goes on."""

from __future__ import annotations

from tests.faults.fuzz_server import Fuzz


def test_no_request_is_a_fault() -> None:
    """What is altered, cut and made up is taken or refused over HTTP and gRPC, and never a 500."""
    fuzz = Fuzz(seed=16)
    fuzz.run(300)
    assert fuzz.faults == []
    assert fuzz.answers.total() == 300
    assert {"OK", "INVALID_ARGUMENT", "200", "400", "404", "415"} <= fuzz.answers.keys()
