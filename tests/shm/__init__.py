"""Shared memory: words, regions, lanes, doorbells, signs of life; with real processes at the other end."""
