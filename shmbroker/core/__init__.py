"""Decisions without clock, loop or operating system: what the catalog allows, where partitions go, when to flush.

Time, identity and randomness are arguments; results are values and changes, carried out by others.
"""
