"""Brokers as real processes: as in the tests of the processes themselves."""

from tests.processes.conftest import data, start

__all__ = ["data", "start"]
