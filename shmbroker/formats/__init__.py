"""The bytes of shmbroker: one module for each format, with its drawing, its sizes and its checks.

Nothing here does I/O, and no other package may unpack these bytes by itself.
"""
