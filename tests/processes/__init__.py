"""Brokers as real processes, and their deaths."""
