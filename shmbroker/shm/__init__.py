"""Shared memory between processes: words, regions, lanes, doorbells and signs of life. Knows no file of the storage."""
