"""Fault-injecting storage, and simulations of several actors over it, for our tests and users' tests."""

from tracelake.testing.explore import (
    FailedRun,
    Operation,
    RecordingKeyValueStore,
    Report,
    explore,
    find_contradiction,
    run_once,
    search,
)
from tracelake.testing.simulation import Actor, Process, Run, Scenario, Violation, replay
from tracelake.testing.stores import (
    Choice,
    Crashed,
    CrashingKeyValueStore,
    CrashingObjectStore,
    CrashPoint,
    Fate,
    Faults,
)

__all__ = [
    "Actor",
    "Choice",
    "CrashPoint",
    "Crashed",
    "CrashingKeyValueStore",
    "CrashingObjectStore",
    "FailedRun",
    "Fate",
    "Faults",
    "Operation",
    "Process",
    "RecordingKeyValueStore",
    "Report",
    "Run",
    "Scenario",
    "Violation",
    "explore",
    "find_contradiction",
    "replay",
    "run_once",
    "search",
]
