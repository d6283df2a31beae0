"""Measurements: the limits of this machine (machine), workloads on a whole broker beside them (workloads), and the
pieces one by one (micro, with pytest-benchmark). Nothing here is imported by the broker."""
