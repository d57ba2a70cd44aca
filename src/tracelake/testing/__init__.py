"""Storage that fails on purpose, and simulations of several actors over it: for our tests, and for yours."""

from tracelake.testing.calls import Choice, Fate, Faults
from tracelake.testing.crashes import Crashed, CrashingKeyValueStore, CrashingObjectStore, CrashPoint
from tracelake.testing.exhaustive import explore
from tracelake.testing.linearizability import Operation, RecordingKeyValueStore, find_contradiction
from tracelake.testing.process import Process
from tracelake.testing.randomized import run_once, search
from tracelake.testing.reports import FailedRun, Report
from tracelake.testing.scenario import Actor, Scenario, Violation
from tracelake.testing.simulation import Run, replay

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
