"""Checks of a configured lake and of this machine, each with the way to mend what it found."""

from tracelake.doctor.checks import CheckResult, Diagnosis, Status, Verdict
from tracelake.doctor.run import diagnose

__all__ = ["CheckResult", "Diagnosis", "Status", "Verdict", "diagnose"]
