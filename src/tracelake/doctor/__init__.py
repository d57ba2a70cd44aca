"""Checks of a configured lake and of this machine, each with a suggested fix."""

from tracelake.doctor.doctor import diagnose
from tracelake.doctor.stores import CheckResult, Diagnosis, Status, Verdict

__all__ = ["CheckResult", "Diagnosis", "Status", "Verdict", "diagnose"]
