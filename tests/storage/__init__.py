"""Tests of shmbroker.storage."""
