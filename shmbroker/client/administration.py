"""What a client asks of the catalog: ordinary Iggy commands over the connection, and stored offsets.

A stream, topic or partition is named by its number or its name; a text of digits alone is a name here. One that is not
there raises NotFound. Every ``timeout`` is in seconds: WaitTimeout where nothing was sent, OutcomeUnknown where the
broker did not answer in time. Nothing here keeps state.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from shmbroker.client.access import AccessAdministration
from shmbroker.client.broker_facts import BrokerFacts
from shmbroker.client.descriptions import Durability, StreamDescription, TopicDescription
from shmbroker.client.exchange import Exchange, deadline_of
from shmbroker.client.groups import GroupAdministration
from shmbroker.client.offsets import check_offset, consumer_key
from shmbroker.client.transport import Transport
from shmbroker.core.options import OptionValue, option_values
from shmbroker.errors import ErrorCode, error_from
from shmbroker.wire import groups, messages, streams, topics
from shmbroker.wire.bodies import Request
from shmbroker.wire.primitives import Identifier

TIMEOUT_S = 30.0
Seconds = float | None
Size = int | str


class Administration(AccessAdministration, BrokerFacts, GroupAdministration):
    """The part of a client that needs nothing but its connection (and, for offsets, its transport)."""

    _connection: Exchange
    _transport: Transport

    def _request(self, request: Request, timeout: Seconds) -> Any:
        return self._connection.request(request, deadline_of(timeout))

    # --- streams -----------------------------------------------------------------------------------------------------
    def create_stream(self, name: str, *, timeout: Seconds = TIMEOUT_S) -> StreamDescription:
        """A new stream. Raises AlreadyExists."""
        return StreamDescription.of(self._request(streams.CreateStream(name), timeout))

    def get_stream(self, stream: Identifier, *, timeout: Seconds = TIMEOUT_S) -> StreamDescription:
        """One stream with its topics."""
        found = self._request(streams.GetStream(stream), timeout)
        if found is None:
            raise error_from(ErrorCode.STREAM_NOT_FOUND, f"there is no stream {stream}")
        return StreamDescription.of_details(found)

    def list_streams(self, *, timeout: Seconds = TIMEOUT_S) -> list[StreamDescription]:
        """All streams, without their topics."""
        return [StreamDescription.of(entry) for entry in self._request(streams.GetStreams(), timeout) or ()]

    def update_stream(self, stream: Identifier, name: str, *, timeout: Seconds = TIMEOUT_S) -> None:
        """Gives it another name."""
        self._request(streams.UpdateStream(stream, name), timeout)

    def delete_stream(self, stream: Identifier, *, timeout: Seconds = TIMEOUT_S) -> None:
        """Removes it with all its topics and their messages."""
        self._request(streams.DeleteStream(stream), timeout)

    def purge_stream(self, stream: Identifier, *, timeout: Seconds = TIMEOUT_S) -> None:
        """Empties all its topics; their offsets start at 0 again."""
        self._request(streams.PurgeStream(stream), timeout)

    # --- topics ------------------------------------------------------------------------------------------------------
    def create_topic(
        self,
        /,
        stream: Identifier,
        name: str,
        *,
        partitions: int = 1,
        durability: Durability | str | None = None,
        consumer_offset_durability: Durability | str | None = None,
        messages_required_to_save: int | None = None,
        size_of_messages_required_to_save: Size | None = None,
        segment_size: Size | None = None,
        max_topic_size: Size | None = None,
        message_expiry: timedelta | Size | None = None,
        preallocate_segments: bool | None = None,
        compression_algorithm: str | None = None,
        options: Mapping[str, str] | None = None,
        timeout: Seconds = TIMEOUT_S,
        **others: Any,
    ) -> TopicDescription:
        """A new topic. All options but expiry, size and compression are for ever.

        Sizes are bytes, or text like ``"64 MiB"``; expiry is a timedelta, microseconds, or text like ``"7 days"``.
        ``options`` are further ones as text. An unknown or former option (``enforce_fsync``) raises UnsupportedOption
        saying what to use; a bad value InvalidOption.
        """
        settings = {
            "durability": durability,
            "consumer_offset_durability": consumer_offset_durability,
            "messages_required_to_save": messages_required_to_save,
            "size_of_messages_required_to_save": size_of_messages_required_to_save,
            "segment_size": segment_size,
            "max_topic_size": max_topic_size,
            "message_expiry": _microseconds(message_expiry),
            "preallocate_segments": preallocate_segments,
            "compression_algorithm": compression_algorithm,
        }
        request = topics.CreateTopic(stream, partitions, name, _options(settings, options, others))
        return TopicDescription.of_details(self._request(request, timeout))

    def get_topic(self, stream: Identifier, topic: Identifier, *, timeout: Seconds = TIMEOUT_S) -> TopicDescription:
        """One topic with its effective options and its partitions."""
        found = self._request(topics.GetTopic(stream, topic), timeout)
        if found is None:
            raise error_from(ErrorCode.TOPIC_NOT_FOUND, f"there is no topic {topic} in stream {stream}")
        return TopicDescription.of_details(found)

    def list_topics(self, stream: Identifier, *, timeout: Seconds = TIMEOUT_S) -> list[TopicDescription]:
        """All topics of a stream, without their partitions."""
        return list(self.get_stream(stream, timeout=timeout).topics)

    def update_topic(
        self,
        /,
        stream: Identifier,
        topic: Identifier,
        *,
        name: str | None = None,
        message_expiry: timedelta | Size | None = None,
        max_topic_size: Size | None = None,
        compression_algorithm: str | None = None,
        options: Mapping[str, str] | None = None,
        timeout: Seconds = TIMEOUT_S,
        **others: Any,
    ) -> None:
        """Changes what may change; what is not given stays. A create-only option raises UnsupportedOption."""
        deadline = deadline_of(timeout)
        settings = {
            "message_expiry": _microseconds(message_expiry),
            "max_topic_size": max_topic_size,
            "compression_algorithm": compression_algorithm,
        }
        values = _options(settings, options, others)
        if name is None:
            name = self.get_topic(stream, topic, timeout=deadline - time.monotonic()).name
        self._connection.request(topics.UpdateTopic(stream, topic, name, values), deadline)

    def delete_topic(self, stream: Identifier, topic: Identifier, *, timeout: Seconds = TIMEOUT_S) -> None:
        """Removes it with its messages and stored offsets."""
        self._request(topics.DeleteTopic(stream, topic), timeout)

    def purge_topic(self, stream: Identifier, topic: Identifier, *, timeout: Seconds = TIMEOUT_S) -> None:
        """Drops its messages and stored offsets; offsets start at 0 again."""
        self._request(topics.PurgeTopic(stream, topic), timeout)

    # --- partitions --------------------------------------------------------------------------------------------------
    def create_partitions(
        self, stream: Identifier, topic: Identifier, count: int, *, timeout: Seconds = TIMEOUT_S
    ) -> None:
        """Adds partitions. Producers that are open keep spreading over the old ones."""
        self._request(topics.CreatePartitions(stream, topic, count), timeout)

    def delete_partitions(
        self, stream: Identifier, topic: Identifier, count: int, *, timeout: Seconds = TIMEOUT_S
    ) -> None:
        """Removes the last ``count`` partitions with their messages."""
        self._request(topics.DeletePartitions(stream, topic, count), timeout)

    def delete_segments(
        self, stream: Identifier, topic: Identifier, partition: int, count: int, *, timeout: Seconds = TIMEOUT_S
    ) -> None:
        """Removes the oldest ``count`` sealed segments of a partition, never the active one."""
        self._request(topics.DeleteSegments(stream, topic, partition, count), timeout)

    def flush(
        self,
        stream: Identifier,
        topic: Identifier,
        partition: int | None = None,
        *,
        sync: bool = True,
        timeout: Seconds = TIMEOUT_S,
    ) -> None:
        """Writes what is committed in a partition (None: in all) to its files; ``sync``: onto stable storage."""
        deadline = deadline_of(timeout)
        ids = [partition]
        if partition is None:
            found = self.get_topic(stream, topic, timeout=timeout)
            ids = [each.id for each in found.partitions]
        for each in ids:
            assert each is not None
            self._connection.request(messages.FlushUnsavedBuffer(stream, topic, each, sync), deadline)

    # --- stored offsets ----------------------------------------------------------------------------------------------
    def get_consumer_offset(
        self,
        stream: Identifier,
        topic: Identifier,
        partition: int,
        *,
        name: str | None = None,
        id: int | None = None,
        group: Identifier | None = None,
        timeout: Seconds = TIMEOUT_S,
    ) -> int | None:
        """The offset of the last message that this consumer (or group) stored as processed, or None."""
        deadline = deadline_of(timeout)
        key = self._consumer_key(stream, topic, name, id, group, deadline)
        return self._transport.get_offset(stream, topic, partition, key, deadline)

    def set_consumer_offset(
        self,
        stream: Identifier,
        topic: Identifier,
        partition: int,
        offset: int,
        *,
        name: str | None = None,
        id: int | None = None,
        group: Identifier | None = None,
        timeout: Seconds = TIMEOUT_S,
    ) -> None:
        """Stores it; returns when the topic's ``consumer_offset_durability`` is met. May go back.

        Raises InvalidOffset beyond the end of the partition.
        """
        check_offset(offset)
        deadline = deadline_of(timeout)
        key = self._consumer_key(stream, topic, name, id, group, deadline)
        self._transport.set_offset(stream, topic, partition, key, offset, deadline)

    def delete_consumer_offset(
        self,
        stream: Identifier,
        topic: Identifier,
        partition: int,
        *,
        name: str | None = None,
        id: int | None = None,
        group: Identifier | None = None,
        timeout: Seconds = TIMEOUT_S,
    ) -> None:
        """Forgets it; returns when the policy is met. Raises NotFound where none is stored."""
        deadline = deadline_of(timeout)
        key = self._consumer_key(stream, topic, name, id, group, deadline)
        self._transport.delete_offset(stream, topic, partition, key, deadline)

    def _consumer_key(
        self,
        stream: Identifier,
        topic: Identifier,
        name: str | None,
        number: int | None,
        group: Identifier | None,
        deadline: float,
    ) -> bytes:
        """The key under which it stores; a group's is its name, which is asked for where a number is given."""
        if isinstance(group, int):
            found = self._connection.request(groups.GetGroup(stream, topic, group), deadline)
            if found is None:
                raise error_from(ErrorCode.GROUP_NOT_FOUND, f"{stream}/{topic} has no consumer group {group}")
            assert isinstance(found, groups.GroupDetails)
            group = found.group.name
        return consumer_key(name, number, group)

    # --- the broker --------------------------------------------------------------------------------------------------
    def stats(self, *, timeout: Seconds = TIMEOUT_S) -> dict[str, Any]:
        """Figures: ``{"broker": {...}, "workers": [{...}], "partitions": [{...}]}``; over TCP only of the broker."""
        return self._transport.stats(deadline_of(timeout))


def _options(
    settings: Mapping[str, Any], texts: Mapping[str, str] | None, others: Mapping[str, Any]
) -> tuple[OptionValue, ...]:
    return option_values({**settings, **others, **(texts or {})})


def _microseconds(expiry: timedelta | Size | None) -> Size | None:
    return expiry // timedelta(microseconds=1) if isinstance(expiry, timedelta) else expiry
