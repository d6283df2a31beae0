"""Tests of shmbroker.formats."""
