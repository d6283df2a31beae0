"""Commands about the server itself: ping, figures, the one-node cluster, the options that there are."""

from __future__ import annotations

import os
import platform
import shutil
import time
from importlib.metadata import version
from typing import TYPE_CHECKING

from shmbroker.core import options
from shmbroker.front.handlers_catalog import Handler
from shmbroker.front.process_figures import PAGE_SIZE_OF_MACHINE, figures_of
from shmbroker.front.snapshot import get_snapshot
from shmbroker.wire import system
from shmbroker.wire.codes import Code

if TYPE_CHECKING:
    from shmbroker.front.session import Session


async def ping(session: Session, request: system.Ping) -> None:
    return None


async def get_stats(session: Session, request: system.GetStats) -> system.StatsBody:
    broker = session.broker
    catalog = broker.keeper.catalog
    figures = [broker.logs.figures(log_id) for log_id in catalog.logs]
    disk = shutil.disk_usage(broker.places.data)
    major, minor, patch = (int(part) for part in version("shmbroker").split(".")[:3])
    topics = [topic for stream in catalog.streams.values() for topic in stream.topics.values()]
    processes = [found for pid in broker.process_ids() if (found := figures_of(pid)) is not None]
    own_share, machine_share = broker.processor_use.since_last(sum(each.processor_s for each in processes))
    return system.StatsBody(
        process_id=os.getpid(),
        cpu_usage=own_share,
        total_cpu_usage=machine_share,
        memory_usage=sum(each.resident_size for each in processes),
        total_memory=os.sysconf("SC_PHYS_PAGES") * PAGE_SIZE_OF_MACHINE,
        available_memory=os.sysconf("SC_AVPHYS_PAGES") * PAGE_SIZE_OF_MACHINE,
        run_time_us=int((time.monotonic() - broker.started_s) * 1e6),
        start_time_us=broker.started_us,
        read_bytes=sum(each.read_size for each in processes),
        written_bytes=sum(each.written_size for each in processes),
        messages_size=sum(each.size for each in figures),
        streams_count=len(catalog.streams),
        topics_count=len(topics),
        partitions_count=len(catalog.logs),
        segments_count=sum(each.segment_count for each in figures),
        messages_count=sum(each.message_count for each in figures),
        clients_count=len(broker.sessions),
        groups_count=sum(len(topic.groups) for topic in topics),
        host_name=platform.node(),
        os_name=platform.system(),
        os_version=platform.version(),
        kernel_version=platform.release(),
        server_version=version("shmbroker"),
        server_semver=major * 1_000_000 + minor * 1_000 + patch,
        threads_count=sum(each.threads_count for each in processes),
        free_disk_space=disk.free,
        total_disk_space=disk.total,
    )


async def get_cluster_metadata(session: Session, request: system.GetClusterMetadata) -> system.ClusterMetadata:
    """One node, ourselves. A client that is told of one goes nowhere else, whatever address it says."""
    broker = session.broker
    host, _, port = broker.tcp_address.rpartition(":")
    http_port = broker.http_address.rpartition(":")[2]
    node = system.ClusterNode(
        platform.node() or "shmbroker",
        host.strip("[]") or "127.0.0.1",
        int(port or 0),
        http_port=int(http_port or 0),
    )
    return system.ClusterMetadata("single-node", (node,))


async def describe_options(session: Session, request: system.DescribeOptions) -> system.OptionsCatalogue:
    entries = options.describe() if request.scope == system.SCOPE_TOPIC else ()
    return system.OptionsCatalogue(tuple(entries))


HANDLERS: dict[int, Handler] = {
    Code.PING: ping,
    Code.GET_STATS: get_stats,
    Code.GET_SNAPSHOT: get_snapshot,
    Code.GET_CLUSTER_METADATA: get_cluster_metadata,
    Code.DESCRIBE_OPTIONS: describe_options,
}
