"""The archive of facts for whoever has to find out what went on: a ZIP with one text file for each kind asked for.

It holds no message, no password and no token; names of streams and of files are in it.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import platform
import resource
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from shmbroker.errors import ErrorCode, ShmbrokerError, error_from
from shmbroker.front.process_figures import figures_of
from shmbroker.wire import system

if TYPE_CHECKING:
    from shmbroker.front.broker import Broker
    from shmbroker.front.session import Session

FILES_LISTED_MAX: Final = 20_000
COMPRESSIONS: Final[dict[int, int]] = {
    1: zipfile.ZIP_STORED,
    2: zipfile.ZIP_DEFLATED,
    3: zipfile.ZIP_BZIP2,
    5: zipfile.ZIP_LZMA,
}
"""4 and 6, zstd and xz, are not among what Python writes into a ZIP."""
ALL: Final = 100


async def get_snapshot(session: Session, request: system.GetSnapshot) -> system.SnapshotReply:
    compression = COMPRESSIONS.get(request.compression)
    if compression is None:
        raise error_from(ErrorCode.FEATURE_UNAVAILABLE, "stored, deflated, bzip2 and lzma are offered")
    wanted = KINDS.keys() if ALL in request.kinds else request.kinds
    if not request.kinds or not KINDS.keys() >= set(wanted):
        raise error_from(ErrorCode.INVALID_COMMAND, f"kinds of facts are {', '.join(map(str, KINDS))} and {ALL}")
    names = [KINDS[kind][0] for kind in sorted(set(wanted))]
    makers = [KINDS[kind][1] for kind in sorted(set(wanted))]
    try:
        archive = await asyncio.to_thread(_archive, session.broker, compression, names, makers)
    except OSError as error:
        text = f"the archive could not be made: {error}"
        raise ShmbrokerError(text, number=ErrorCode.SNAPSHOT_FAILED) from error
    return system.SnapshotReply(archive)


def _archive(broker: Broker, compression: int, names: Sequence[str], makers: Sequence[Maker]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", compression) as archive:
        for name, maker in zip(names, makers, strict=True):
            archive.writestr(name, maker(broker))
    return made.getvalue()


# --- the facts --------------------------------------------------------------------------------------------------------
def _file_systems(broker: Broker) -> str:
    lines = []
    for title, directory in (("data", broker.places.data), ("runtime", broker.places.runtime)):
        found = os.statvfs(directory)
        free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        lines.append(f"{title} {directory}: {free} of {total} bytes free")
        lines += _listing(directory)
    return "\n".join([*lines, ""])


def _listing(directory: str) -> list[str]:
    lines: list[str] = []
    for parent, directories, names in os.walk(directory):
        directories.sort()
        for name in sorted(names):
            path = os.path.join(parent, name)
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                continue
            allocated = found.st_blocks * 512
            lines.append(f"{found.st_size:>14} {allocated:>14} {found.st_mtime:.0f} {os.path.relpath(path, directory)}")
            if len(lines) == FILES_LISTED_MAX:
                return [*lines, f"and more: the first {FILES_LISTED_MAX} are listed"]
    return lines


def _processes(broker: Broker) -> str:
    found = [figures_of(pid) for pid in broker.process_ids()]
    return _json([asdict(each) for each in found if each is not None])


def _resources(broker: Broker) -> str:
    own, workers = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    facts: dict[str, Any] = {
        "version": version("shmbroker"),
        "python": platform.python_version(),
        "machine": " ".join(platform.uname()),
        "processors": os.cpu_count(),
        "load": os.getloadavg(),
        "memory": _memory(),
        "front": _usage(own),
        "ended workers": _usage(workers),
        "connections": len(broker.sessions),
        "lanes": len(broker.lanes),
        "watches": len(broker.watches),
        "partitions": len(broker.keeper.catalog.logs),
    }
    return _json(facts)


def _usage(found: resource.struct_rusage) -> dict[str, float]:
    return {name: getattr(found, name) for name in dir(found) if name.startswith("ru_")}


def _memory() -> dict[str, str]:
    with open("/proc/meminfo", encoding="ascii") as file:
        return {key: value.strip() for key, value in (line.split(":", 1) for line in file)}


def _test(broker: Broker) -> str:
    return "the archive can be read\n"


def _log(broker: Broker) -> str:
    return broker.log_memory.text()


def _settings(broker: Broker) -> str:
    return _json(asdict(broker.config))


def _json(facts: object) -> str:
    return json.dumps(facts, indent=2, default=str) + "\n"


Maker = Callable[["Broker"], str]
KINDS: Final[dict[int, tuple[str, Maker]]] = {
    1: ("file_systems.txt", _file_systems),
    2: ("processes.json", _processes),
    3: ("resources.json", _resources),
    4: ("test.txt", _test),
    5: ("log.txt", _log),
    6: ("settings.json", _settings),
}
