"""What simulations found, counted and told."""

from __future__ import annotations

from dataclasses import dataclass, field

from tracelake.testing.calls import Choice


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that broke a rule, shrunk to a short schedule."""

    scenario: str
    message: str
    seed: int | None
    """The seed of the random run; None where it was found by exhaustive search."""
    schedule: int
    """Which schedule of the search it was, from 1."""
    choices: tuple[Choice, ...]
    """The shrunk schedule, for `replay`."""
    story: str
    """The shrunk run as a readable interleaving."""

    def __str__(self) -> str:
        """Return everything that a person needs to see it happen."""
        how = "exhaustive search" if self.seed is None else f"seed {self.seed}"
        return (
            f"{self.scenario}: {self.message}\n"
            f"found by {how}, schedule {self.schedule}; shrunk to {len(self.choices)} steps:\n{self.story}"
        )


@dataclass(slots=True)
class Report:
    """Totals of a search over the schedules of one scenario, or of several."""

    schedules: int = 0
    completed: int = 0
    """Runs in which every actor that was not killed for good finished its work."""
    steps: int = 0
    states: int = 0
    """Distinct states: stores, and what each actor has seen."""
    faults: int = 0
    seconds: float = 0.0
    is_complete: bool = False
    """Whether an exhaustive search saw all schedules within its bounds, up to the order of independent calls."""
    failures: list[FailedRun] = field(default_factory=list)

    @property
    def violations(self) -> int:
        """The number of runs that broke a rule and were reported."""
        return len(self.failures)

    def add(self, other: Report) -> None:
        """Add the totals of another search."""
        self.schedules += other.schedules
        self.completed += other.completed
        self.steps += other.steps
        self.states += other.states
        self.faults += other.faults
        self.seconds += other.seconds
        self.failures += other.failures

    def __str__(self) -> str:
        """Return the totals on one line."""
        rate = self.schedules / self.seconds if self.seconds else 0.0
        return (
            f"{self.schedules:,} schedules ({self.completed:,} completed), {self.states:,} distinct states, "
            f"{self.steps:,} calls, {self.faults:,} faults, {self.violations} violations, "
            f"{rate:,.0f} schedules/s"
        )
