"""The catalog's rules: streams, topics, partitions and groups, in memory, with their ids, names, limits and errors.
The users' are in ``core.users``, as part of it.

Deciding and changing are two steps. ``create_*``, ``update_*``, ``delete_*`` check and return the changes, and alter
nothing; the caller makes the changes durable (``front.catalog_store``) and then calls :meth:`Catalog.apply`. So memory
never says what the disk does not, and a failed write leaves nothing to undo. One owner decides at a time: between a
decision and its ``apply`` no other is taken.

- Ids of streams, of topics in a stream, and of partitions are the lowest free; a group's id is never used again in its
  topic, so that no new group inherits offsets.
- A partition's data belongs to its ``log_id``, which is never used again at all. The caller reserves it
  (``CatalogStore.reserve_log_ids``) and makes its directory before the partition is created; a deleted one is buried
  until its files are gone.
- Objects handed out are the catalog's own: read them, never change them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from shmbroker.core.changes import (
    Change,
    GroupPut,
    GroupRemoved,
    LogGone,
    PartitionPut,
    PartitionRemoved,
    StreamPut,
    StreamRemoved,
    TokenPut,
    TokenRemoved,
    TopicPut,
    TopicRemoved,
    UserPut,
    UserRemoved,
)
from shmbroker.core.model import Group, Partition, PartitionPlace, Slots, Stream, Topic
from shmbroker.core.names import Identifier, check_name
from shmbroker.core.options import (
    STANDARD_DEFAULTS,
    OptionValue,
    TopicDefaults,
    TopicOptions,
    check_preallocation,
    create_options,
    update_options,
)
from shmbroker.core.users import Users
from shmbroker.errors import ErrorCode, ShmbrokerError, error_from
from shmbroker.limits import (
    PARTITION_COUNT_PER_REQUEST_MAX,
    PARTITION_ID_LIMIT,
    STREAM_COUNT_MAX,
    TOPIC_COUNT_PER_STREAM_MAX,
)

__all__ = ["Catalog", "Change", "Topic"]


class Catalog:
    """All streams and what is below them. Build it by ``apply``-ing what the store has loaded."""

    def __init__(self, defaults: TopicDefaults = STANDARD_DEFAULTS) -> None:
        self.defaults = defaults
        self.streams: dict[int, Stream] = {}
        self.stream_ids: dict[str, int] = {}
        """By name."""
        self.logs: dict[int, PartitionPlace] = {}
        """Every partition by its log_id."""
        self.buried: set[int] = set()
        """log_ids whose partition is gone and whose files may still be there."""
        self.users = Users()
        self._slots = Slots()

    # --- looking ------------------------------------------------------------------------------------------------------
    def find_stream(self, stream: Identifier) -> Stream | None:
        """By number or name."""
        found = self.stream_ids.get(stream) if isinstance(stream, str) else stream
        return None if found is None else self.streams.get(found)

    def find_topic(self, stream: Identifier, topic: Identifier) -> Topic | None:
        """By numbers or names."""
        above = self.find_stream(stream)
        if above is None:
            return None
        found = above.topic_ids.get(topic) if isinstance(topic, str) else topic
        return None if found is None else above.topics.get(found)

    def stream(self, stream: Identifier) -> Stream:
        """Raises 1009."""
        found = self.find_stream(stream)
        if found is None:
            raise error_from(ErrorCode.STREAM_NOT_FOUND, f"there is no stream {stream!r}")
        return found

    def topic(self, stream: Identifier, topic: Identifier) -> Topic:
        """Raises 1009, 2010."""
        above = self.stream(stream)
        found = self.find_topic(above.stream_id, topic)
        if found is None:
            raise error_from(ErrorCode.TOPIC_NOT_FOUND, f"there is no topic {topic!r} in stream {above.name!r}")
        return found

    def partition(self, stream: Identifier, topic: Identifier, partition_id: int) -> Partition:
        """Raises 1009, 2010, 3007."""
        above = self.topic(stream, topic)
        if not 0 <= partition_id < len(above.partitions):
            text = f"topic {above.name!r} has partitions 0 to {len(above.partitions) - 1}, not {partition_id}"
            if not above.partitions:
                text = f"topic {above.name!r} has no partitions"
            raise error_from(ErrorCode.PARTITION_NOT_FOUND, text)
        return above.partitions[partition_id]

    def group(self, stream: Identifier, topic: Identifier, group: Identifier) -> Group:
        """Raises 1009, 2010, 5000."""
        above = self.topic(stream, topic)
        found = above.group_ids.get(group) if isinstance(group, str) else group
        if found is None or found not in above.groups:
            raise error_from(ErrorCode.GROUP_NOT_FOUND, f"there is no group {group!r} for topic {above.name!r}")
        return above.groups[found]

    def log_ids_of(self, stream: Identifier, topic: Identifier | None = None) -> list[int]:
        """The logs of one topic, or of all topics of a stream: what a purge empties. Raises 1009, 2010."""
        above = self.stream(stream)
        topics = list(above.topics.values()) if topic is None else [self.topic(above.stream_id, topic)]
        return [partition.log_id for each in topics for partition in each.partitions]

    # --- streams ------------------------------------------------------------------------------------------------------
    def create_stream(self, name: str, now_us: int) -> list[Change]:
        """One StreamPut, with the new id. Raises 1013, 1012, 1020."""
        check_name(name, "stream", ErrorCode.INVALID_STREAM_NAME)
        if name in self.stream_ids:
            raise _taken("stream", name, ErrorCode.STREAM_NAME_ALREADY_EXISTS)
        if len(self.streams) >= STREAM_COUNT_MAX:
            raise error_from(ErrorCode.TOO_MANY_STREAMS, f"there are {STREAM_COUNT_MAX} streams already")
        return [StreamPut(self._slots.lowest(), name, now_us)]

    def update_stream(self, stream: Identifier, name: str) -> list[Change]:
        """Renames. Raises 1009, 1013, 1012. To its own name: no changes."""
        found = self.stream(stream)
        check_name(name, "stream", ErrorCode.INVALID_STREAM_NAME)
        if name == found.name:
            return []
        if name in self.stream_ids:
            raise _taken("stream", name, ErrorCode.STREAM_NAME_ALREADY_EXISTS)
        return [StreamPut(found.stream_id, name, found.created_at_us)]

    def delete_stream(self, stream: Identifier) -> list[Change]:
        """With all that is below it, and what users were permitted there. Raises 1009."""
        found = self.stream(stream)
        changes: list[Change] = []
        for topic in found.topics.values():
            changes += _remove_topic(topic)
        return [*changes, StreamRemoved(found.stream_id), *self.users.forget(found.stream_id)]

    # --- topics -------------------------------------------------------------------------------------------------------
    def check_topic(
        self, stream: Identifier, name: str, partitions_count: int, values: Iterable[OptionValue] = ()
    ) -> TopicOptions:
        """Everything that :meth:`create_topic` would refuse, before log ids and directories are spent on it.

        The options that the topic would get. Raises 1009, 2014, 2013, 2021, 2015, 1019, 4041, 4042, 4043.
        """
        above = self.stream(stream)
        check_name(name, "topic", ErrorCode.INVALID_TOPIC_NAME)
        if name in above.topic_ids:
            raise _taken("topic", name, ErrorCode.TOPIC_NAME_ALREADY_EXISTS)
        if len(above.topics) >= TOPIC_COUNT_PER_STREAM_MAX:
            text = f"stream {above.name!r} has {TOPIC_COUNT_PER_STREAM_MAX} topics already"
            raise error_from(ErrorCode.TOO_MANY_TOPICS, text)
        if not 0 <= partitions_count <= PARTITION_COUNT_PER_REQUEST_MAX:
            raise _too_many_partitions(partitions_count, 0)
        return create_options(values, self.defaults, partitions_count)

    def create_topic(
        self, stream: Identifier, name: str, log_ids: Sequence[int], values: Iterable[OptionValue], now_us: int
    ) -> list[Change]:
        """A TopicPut, then a PartitionPut for each log id. Raises as :meth:`check_topic`."""
        options = self.check_topic(stream, name, len(log_ids), values)
        above = self.stream(stream)
        topic_id = above.slots.lowest()
        partitions = [
            PartitionPut(above.stream_id, topic_id, partition_id, log_id, now_us)
            for partition_id, log_id in enumerate(log_ids)
        ]
        return [TopicPut(above.stream_id, topic_id, name, now_us, options, 0), *partitions]

    def update_topic(
        self, stream: Identifier, topic: Identifier, name: str, values: Iterable[OptionValue] = ()
    ) -> list[Change]:
        """Renames and patches the options. Raises 1009, 2010, 2014, 2013, 1019, 4041, 4042, 4043."""
        found = self.topic(stream, topic)
        check_name(name, "topic", ErrorCode.INVALID_TOPIC_NAME)
        if name != found.name and name in self.streams[found.stream_id].topic_ids:
            raise _taken("topic", name, ErrorCode.TOPIC_NAME_ALREADY_EXISTS)
        options = update_options(found.options, values, self.defaults)
        if name == found.name and options == found.options:
            return []
        return [_topic_put(found, name=name, options=options)]

    def delete_topic(self, stream: Identifier, topic: Identifier) -> list[Change]:
        """With all that is below it, and what users were permitted there. Raises 1009, 2010."""
        found = self.topic(stream, topic)
        return [*_remove_topic(found), *self.users.forget(found.stream_id, found.topic_id)]

    # --- partitions ---------------------------------------------------------------------------------------------------
    def check_partitions(self, stream: Identifier, topic: Identifier, count: int) -> Topic:
        """Everything that :meth:`create_partitions` would refuse. Raises 1009, 2010, 2015, 2019, 3013, 4042."""
        found = self.topic(stream, topic)
        _check_partitions_count(count)
        if len(found.partitions) + count > PARTITION_ID_LIMIT:
            text = f"topic {found.name!r} has {len(found.partitions)} partitions; {PARTITION_ID_LIMIT} are the most"
            raise error_from(ErrorCode.PARTITION_ID_SPACE_EXHAUSTED, text)
        check_preallocation(found.options, count)
        return found

    def create_partitions(
        self, stream: Identifier, topic: Identifier, log_ids: Sequence[int], now_us: int
    ) -> list[Change]:
        """Adds partitions after the last one. Raises as :meth:`check_partitions`."""
        found = self.check_partitions(stream, topic, len(log_ids))
        return [
            PartitionPut(found.stream_id, found.topic_id, partition_id, log_id, now_us)
            for partition_id, log_id in enumerate(log_ids, len(found.partitions))
        ]

    def delete_partitions(self, stream: Identifier, topic: Identifier, count: int) -> list[Change]:
        """Removes the last ``count``, the last one first. Raises 1009, 2010, 2015, 2019."""
        found = self.topic(stream, topic)
        _check_partitions_count(count)
        if count > len(found.partitions):
            text = f"topic {found.name!r} has {len(found.partitions)} partitions, {count} cannot be deleted"
            raise error_from(ErrorCode.INVALID_PARTITIONS_COUNT, text)
        return _remove_partitions(found, count)

    # --- groups -------------------------------------------------------------------------------------------------------
    def create_group(self, stream: Identifier, topic: Identifier, name: str) -> list[Change]:
        """A GroupPut, and the TopicPut that counts its id. Raises 1009, 2010, 5005, 5004."""
        found = self.topic(stream, topic)
        check_name(name, "consumer group", ErrorCode.INVALID_GROUP_NAME)
        if name in found.group_ids:
            raise _taken("consumer group", name, ErrorCode.GROUP_NAME_ALREADY_EXISTS)
        group_id = found.next_group_id
        put = GroupPut(found.stream_id, found.topic_id, group_id, name)
        return [put, _topic_put(found, next_group_id=group_id + 1)]

    def delete_group(self, stream: Identifier, topic: Identifier, group: Identifier) -> list[Change]:
        """Raises 1009, 2010, 5000. Its stored offsets are the partitions' to forget."""
        above = self.topic(stream, topic)
        return [GroupRemoved(above.stream_id, above.topic_id, self.group(stream, topic, group).group_id)]

    # --- applying -----------------------------------------------------------------------------------------------------
    def apply(self, changes: Iterable[Change]) -> None:
        """Carries out what was decided here, or loaded: in order. A change that does not fit is our own fault."""
        for change in changes:
            match change:
                case StreamPut():
                    self._put_stream(change)
                case StreamRemoved():
                    gone = self.streams.pop(change.stream_id)
                    assert not gone.topics
                    del self.stream_ids[gone.name]
                    self._slots.release(change.stream_id)
                case TopicPut():
                    self._put_topic(change)
                case TopicRemoved():
                    self._remove_topic(change)
                case PartitionPut():
                    self._put_partition(change)
                case PartitionRemoved():
                    removed = self.streams[change.stream_id].topics[change.topic_id].partitions.pop()
                    assert (removed.partition_id, removed.log_id) == (change.partition_id, change.log_id)
                    del self.logs[change.log_id]
                    self.buried.add(change.log_id)
                case GroupPut():
                    topic = self.streams[change.stream_id].topics[change.topic_id]
                    assert change.name not in topic.group_ids
                    topic.groups[change.group_id] = Group(change.group_id, change.name)
                    topic.group_ids[change.name] = change.group_id
                case GroupRemoved():
                    topic = self.streams[change.stream_id].topics[change.topic_id]
                    del topic.group_ids[topic.groups.pop(change.group_id).name]
                case LogGone():
                    self.buried.remove(change.log_id)
                case UserPut() | UserRemoved() | TokenPut() | TokenRemoved():
                    self.users.apply(change)

    def _put_stream(self, change: StreamPut) -> None:
        found = self.streams.get(change.stream_id)
        if found is None:
            self._slots.take(change.stream_id)
            self.streams[change.stream_id] = Stream(change.stream_id, change.name, change.created_at_us)
        else:
            del self.stream_ids[found.name]
            found.name = change.name
        assert change.name not in self.stream_ids
        self.stream_ids[change.name] = change.stream_id

    def _put_topic(self, change: TopicPut) -> None:
        stream = self.streams[change.stream_id]
        found = stream.topics.get(change.topic_id)
        if found is None:
            stream.slots.take(change.topic_id)
            found = Topic(change.stream_id, change.topic_id, change.name, change.created_at_us, change.options)
            stream.topics[change.topic_id] = found
        else:
            del stream.topic_ids[found.name]
            found.name = change.name
            found.options = change.options
        found.next_group_id = change.next_group_id
        assert change.name not in stream.topic_ids
        stream.topic_ids[change.name] = change.topic_id

    def _remove_topic(self, change: TopicRemoved) -> None:
        stream = self.streams[change.stream_id]
        gone = stream.topics.pop(change.topic_id)
        assert not gone.partitions
        assert not gone.groups
        del stream.topic_ids[gone.name]
        stream.slots.release(change.topic_id)

    def _put_partition(self, change: PartitionPut) -> None:
        stream = self.streams[change.stream_id]
        topic = stream.topics[change.topic_id]
        assert change.partition_id == len(topic.partitions)
        assert change.log_id not in self.logs
        assert change.log_id not in self.buried
        partition = Partition(change.partition_id, change.log_id, change.created_at_us)
        topic.partitions.append(partition)
        self.logs[change.log_id] = PartitionPlace(stream, topic, partition)

    def snapshot(self) -> Iterator[Change]:
        """The changes that build this catalog from an empty one."""
        yield from self.users.snapshot()
        for stream in self.streams.values():
            yield StreamPut(stream.stream_id, stream.name, stream.created_at_us)
            for topic in stream.topics.values():
                yield _topic_put(topic)
                for partition in topic.partitions:
                    yield PartitionPut(stream.stream_id, topic.topic_id, *_fields(partition))
                for group in topic.groups.values():
                    yield GroupPut(stream.stream_id, topic.topic_id, group.group_id, group.name)


def _fields(partition: Partition) -> tuple[int, int, int]:
    return partition.partition_id, partition.log_id, partition.created_at_us


def _topic_put(
    topic: Topic, *, name: str | None = None, options: TopicOptions | None = None, next_group_id: int | None = None
) -> TopicPut:
    return TopicPut(
        topic.stream_id,
        topic.topic_id,
        topic.name if name is None else name,
        topic.created_at_us,
        topic.options if options is None else options,
        topic.next_group_id if next_group_id is None else next_group_id,
    )


def _remove_partitions(topic: Topic, count: int) -> list[Change]:
    last = topic.partitions[len(topic.partitions) - count :]
    return [PartitionRemoved(topic.stream_id, topic.topic_id, each.partition_id, each.log_id) for each in last[::-1]]


def _remove_topic(topic: Topic) -> list[Change]:
    groups = [GroupRemoved(topic.stream_id, topic.topic_id, group_id) for group_id in topic.groups]
    partitions = _remove_partitions(topic, len(topic.partitions))
    return [*groups, *partitions, TopicRemoved(topic.stream_id, topic.topic_id)]


def _check_partitions_count(count: int) -> None:
    if count > PARTITION_COUNT_PER_REQUEST_MAX:
        raise _too_many_partitions(count, 1)
    if count < 1:
        text = f"1 to {PARTITION_COUNT_PER_REQUEST_MAX} partitions at a time, not {count}"
        raise error_from(ErrorCode.INVALID_PARTITIONS_COUNT, text)


def _too_many_partitions(count: int, least: int) -> ShmbrokerError:
    text = f"{least} to {PARTITION_COUNT_PER_REQUEST_MAX} partitions at a time, not {count}"
    return error_from(ErrorCode.TOO_MANY_PARTITIONS, text)


def _taken(noun: str, name: str, code: ErrorCode) -> ShmbrokerError:
    return error_from(code, f"there is a {noun} {name!r} already")
