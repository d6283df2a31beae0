"""The exceptions of shmbroker, named for who must act, each with the number that the wire gives it.

The numbers below 20,000 are those of Apache Iggy's error table, so that its clients understand them; those from 20,000
on are ours and travel only over shared memory and the Unix socket. A message names the thing and the remedy.

- :class:`ClientMistake`: the caller asked for something that cannot be; ask differently.
- :class:`NotAccepted`: nothing happened; it is safe to try again.
- :class:`OutcomeUnknown`: it may or may not have happened; nobody will say.
- :class:`Unavailable`: the broker or the partition is not there for you; an operator may have to act.
- :class:`Corrupt`, :class:`DiskFailed`: the storage failed; the partition stops, an operator must act.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, Final


class ErrorCode(IntEnum):
    """Numbers that travel in replies and completions."""

    OK = 0
    ERROR = 1
    INVALID_CONFIGURATION = 2
    INVALID_COMMAND = 3
    INVALID_FORMAT = 4
    FEATURE_UNAVAILABLE = 5
    INVALID_IDENTIFIER = 6
    DISCONNECTED = 8
    RESOURCE_NOT_FOUND = 20
    STALE_CLIENT = 30
    UNAUTHENTICATED = 40
    UNAUTHORIZED = 41
    INVALID_CREDENTIALS = 42
    INVALID_USERNAME = 43
    INVALID_PASSWORD = 44
    INVALID_USER_STATUS = 45
    USER_ALREADY_EXISTS = 46
    USER_INACTIVE = 47
    CANNOT_DELETE_USER = 48
    CANNOT_CHANGE_PERMISSIONS = 49
    INVALID_TOKEN_NAME = 50
    TOKEN_ALREADY_EXISTS = 51
    TOKENS_LIMIT_REACHED = 52
    INVALID_TOKEN = 53
    TOKEN_EXPIRED = 54
    USERS_LIMIT_REACHED = 55
    INVALID_TOKEN_EXPIRY = 56
    TRANSIENT_NOT_COMMITTED = 57
    TRANSIENT_NOT_ACCEPTED = 58
    REQUEST_ALREADY_APPLIED = 59
    CLIENT_NOT_FOUND = 100
    STREAM_NOT_FOUND = 1009
    STREAM_NAME_NOT_FOUND = 1010
    STREAM_NAME_ALREADY_EXISTS = 1012
    INVALID_STREAM_NAME = 1013
    INVALID_TOPIC_SIZE = 1019
    TOO_MANY_STREAMS = 1020
    TOPIC_NOT_FOUND = 2010
    TOPIC_NAME_NOT_FOUND = 2011
    TOPIC_NAME_ALREADY_EXISTS = 2013
    INVALID_TOPIC_NAME = 2014
    TOO_MANY_PARTITIONS = 2015
    INVALID_PARTITIONS_COUNT = 2019
    TOO_MANY_TOPICS = 2021
    PARTITION_NOT_FOUND = 3007
    PARTITION_ID_SPACE_EXHAUSTED = 3013
    CANNOT_READ_CONSUMER_OFFSETS = 3020
    CONSUMER_OFFSET_NOT_FOUND = 3021
    TOO_MANY_CONSUMER_OFFSETS = 3024
    SEGMENT_NOT_FOUND = 4000
    INVALID_MESSAGES_COUNT = 4009
    TOO_BIG_USER_HEADERS = 4017
    INVALID_HEADER_KEY = 4018
    INVALID_HEADER_VALUE = 4019
    TOO_BIG_MESSAGE_PAYLOAD = 4022
    TOO_MANY_MESSAGES = 4023
    EMPTY_MESSAGE_PAYLOAD = 4024
    INVALID_MESSAGE_CHECKSUM = 4027
    INVALID_KEY_VALUE_LENGTH = 4028
    INVALID_SEGMENTS_COUNT = 4030
    INVALID_TIMESTAMP_DELTA = 4038
    INVALID_BATCH_CHECKSUM = 4039
    INVALID_HEADER_KIND = 4040
    UNSUPPORTED_OPTION_KEY = 4041
    INVALID_OPTION_VALUE = 4042
    OPTIONS_BLOCK_TOO_LARGE = 4043
    BACKGROUND_SEND_TIMEOUT = 4052
    BACKGROUND_SEND_BUFFER_FULL = 4053
    PRODUCER_CLOSED = 4057
    INVALID_OFFSET = 4100
    GROUP_NOT_FOUND = 5000
    GROUP_NAME_NOT_FOUND = 5003
    GROUP_NAME_ALREADY_EXISTS = 5004
    INVALID_GROUP_NAME = 5005
    GROUP_MEMBER_NOT_FOUND = 5006
    GROUP_PARTITION_NOT_OWNED = 5009
    CANNOT_READ_FILE = 10002
    SNAPSHOT_FAILED = 9000
    CANNOT_WRITE_TO_FILE = 10006
    CANNOT_SYNC_FILE = 10009
    TASK_TIMEOUT = 12001
    # Ours.
    BATCH_TOO_LARGE = 20001
    DISK_FULL = 20002
    JOURNAL_FULL = 20003
    PARTITION_POISONED = 20004
    PARTITION_REFUSED = 20005
    PARTITION_REPLACED = 20006
    PARTITION_NOT_GRANTED = 20007
    LANE_PROTOCOL = 20008
    LANE_CLOSED = 20009
    OFFSETS_REFUSED = 20010
    WORKER_UNAVAILABLE = 20011
    BROKER_STOPPING = 20012


class ShmbrokerError(Exception):
    """The root of every error that shmbroker raises on purpose. ``code`` is its number on the wire."""

    code: ClassVar[ErrorCode] = ErrorCode.ERROR

    def __init__(self, message: str, *, number: int | None = None) -> None:
        super().__init__(message)
        self.number = int(self.code if number is None else number)
        """The number that was received or is to be sent; ``code`` unless a reply said something more exact."""


class ClientMistake(ShmbrokerError):
    """The request cannot be carried out as it stands: change it."""

    code = ErrorCode.INVALID_COMMAND


class InvalidConfiguration(ClientMistake):
    """A setting is unknown, has a bad value, or is refused by name."""

    code = ErrorCode.INVALID_CONFIGURATION


class InvalidOption(ClientMistake):
    """A topic option has a bad value."""

    code = ErrorCode.INVALID_OPTION_VALUE


class UnsupportedOption(ClientMistake):
    """A topic option is unknown, create-only, or has been replaced: the text says by what."""

    code = ErrorCode.UNSUPPORTED_OPTION_KEY


class NotFound(ClientMistake):
    """The stream, topic, partition, group, offset or segment is not there."""

    code = ErrorCode.RESOURCE_NOT_FOUND


class AlreadyExists(ClientMistake):
    """The name is taken."""

    code = ErrorCode.STREAM_NAME_ALREADY_EXISTS


class LimitReached(ClientMistake):
    """A bound of :mod:`shmbroker.limits` would be crossed."""

    code = ErrorCode.TOO_MANY_STREAMS


class BatchTooLarge(ClientMistake):
    """The batch is larger than ``batch_size_max``, or than the memory left for rings allows: send smaller ones."""

    code = ErrorCode.BATCH_TOO_LARGE


class InvalidMessage(ClientMistake):
    """A payload, header or batch breaks the rules of the format."""

    code = ErrorCode.INVALID_FORMAT


class InvalidOffset(ClientMistake):
    """The offset is beyond what was ever issued."""

    code = ErrorCode.INVALID_OFFSET


class Unauthorized(ClientMistake):
    """This user may not do that."""

    code = ErrorCode.UNAUTHORIZED


class Unauthenticated(Unauthorized):
    """Nobody is logged in on this connection."""

    code = ErrorCode.UNAUTHENTICATED


class InvalidCredentials(Unauthorized):
    """The user name, password or token is wrong."""

    code = ErrorCode.INVALID_CREDENTIALS


class NotAccepted(ShmbrokerError):
    """Nothing was done; trying again later is safe."""

    code = ErrorCode.TRANSIENT_NOT_ACCEPTED


class DiskFull(NotAccepted):
    """No space is left for the log: nothing of the batch was accepted. Reads go on."""

    code = ErrorCode.DISK_FULL


class JournalFull(NotAccepted):
    """The memory for ring journals is used up: raise ``journal_memory_limit`` or free shared memory."""

    code = ErrorCode.JOURNAL_FULL


class BufferFull(NotAccepted):
    """The producer's own buffer is full and the time to wait for space ran out."""

    code = ErrorCode.BACKGROUND_SEND_BUFFER_FULL


class OutcomeUnknown(ShmbrokerError):
    """The broker or its worker died, or the time ran out, with the request under way: it may have been carried out."""

    code = ErrorCode.TRANSIENT_NOT_COMMITTED


class Unavailable(ShmbrokerError):
    """The broker cannot be reached or is not able to serve this now."""

    code = ErrorCode.DISCONNECTED


class BrokerGone(Unavailable):
    """The connection to the broker has ended."""

    code = ErrorCode.DISCONNECTED


class Closed(Unavailable):
    """You closed this object."""

    code = ErrorCode.PRODUCER_CLOSED


class WaitTimeout(Unavailable, TimeoutError):
    """The time given to a wait ran out. Raised only where nothing was sent or nothing was to change; else it is
    OutcomeUnknown."""

    code = ErrorCode.TASK_TIMEOUT


class PartitionReplaced(Unavailable):
    """The topic was purged: open it again and start at its new beginning."""

    code = ErrorCode.PARTITION_REPLACED


class PartitionRevoked(Unavailable):
    """The partition went to another member of the group, where what was not committed is handed out again."""

    code = ErrorCode.GROUP_PARTITION_NOT_OWNED


class PartitionRefused(Unavailable):
    """Recovery found that this partition lost data: see the text for file, position and remedy."""

    code = ErrorCode.PARTITION_REFUSED


class PartitionPoisoned(Unavailable):
    """A write or a sync of this partition failed: it accepts nothing until the broker is started again."""

    code = ErrorCode.PARTITION_POISONED


class LaneBroken(Unavailable):
    """The other end of a lane broke its protocol: the lane is closed."""

    code = ErrorCode.LANE_PROTOCOL


class Corrupt(ShmbrokerError):
    """A file does not hold what it must: ``path`` and ``position`` say where, ``remedy`` what can be done."""

    code = ErrorCode.PARTITION_REFUSED

    def __init__(self, path: str, position: int, fault: str, remedy: str = "") -> None:
        super().__init__(f"{path}: at byte {position}: {fault}" + (f". {remedy}" if remedy else ""))
        self.path = path
        self.position = position
        self.fault = fault
        self.remedy = remedy


class DiskFailed(ShmbrokerError):
    """A write inside allocated space, or a sync, failed. Final: nothing after it is acknowledged."""

    code = ErrorCode.CANNOT_SYNC_FILE


class NoSpace(ShmbrokerError):
    """The file system could not allocate: nothing changed."""

    code = ErrorCode.DISK_FULL


_BY_CODE: dict[int, type[ShmbrokerError]] = {
    ErrorCode.INVALID_CONFIGURATION: InvalidConfiguration,
    ErrorCode.INVALID_FORMAT: InvalidMessage,
    ErrorCode.RESOURCE_NOT_FOUND: NotFound,
    ErrorCode.UNAUTHORIZED: Unauthorized,
    ErrorCode.UNAUTHENTICATED: Unauthenticated,
    ErrorCode.INVALID_CREDENTIALS: InvalidCredentials,
    ErrorCode.USER_ALREADY_EXISTS: AlreadyExists,
    ErrorCode.USER_INACTIVE: Unauthorized,
    ErrorCode.TOKEN_ALREADY_EXISTS: AlreadyExists,
    ErrorCode.TOKENS_LIMIT_REACHED: LimitReached,
    ErrorCode.INVALID_TOKEN: InvalidCredentials,
    ErrorCode.TOKEN_EXPIRED: InvalidCredentials,
    ErrorCode.USERS_LIMIT_REACHED: LimitReached,
    ErrorCode.CLIENT_NOT_FOUND: NotFound,
    ErrorCode.TRANSIENT_NOT_COMMITTED: OutcomeUnknown,
    ErrorCode.TRANSIENT_NOT_ACCEPTED: NotAccepted,
    ErrorCode.REQUEST_ALREADY_APPLIED: OutcomeUnknown,
    ErrorCode.STREAM_NOT_FOUND: NotFound,
    ErrorCode.STREAM_NAME_NOT_FOUND: NotFound,
    ErrorCode.STREAM_NAME_ALREADY_EXISTS: AlreadyExists,
    ErrorCode.TOO_MANY_STREAMS: LimitReached,
    ErrorCode.TOPIC_NOT_FOUND: NotFound,
    ErrorCode.TOPIC_NAME_NOT_FOUND: NotFound,
    ErrorCode.TOPIC_NAME_ALREADY_EXISTS: AlreadyExists,
    ErrorCode.TOO_MANY_PARTITIONS: LimitReached,
    ErrorCode.TOO_MANY_TOPICS: LimitReached,
    ErrorCode.PARTITION_NOT_FOUND: NotFound,
    ErrorCode.PARTITION_ID_SPACE_EXHAUSTED: LimitReached,
    ErrorCode.CONSUMER_OFFSET_NOT_FOUND: NotFound,
    ErrorCode.TOO_MANY_CONSUMER_OFFSETS: LimitReached,
    ErrorCode.SEGMENT_NOT_FOUND: NotFound,
    ErrorCode.UNSUPPORTED_OPTION_KEY: UnsupportedOption,
    ErrorCode.INVALID_OPTION_VALUE: InvalidOption,
    ErrorCode.OPTIONS_BLOCK_TOO_LARGE: LimitReached,
    ErrorCode.BACKGROUND_SEND_BUFFER_FULL: BufferFull,
    ErrorCode.INVALID_OFFSET: InvalidOffset,
    ErrorCode.GROUP_NOT_FOUND: NotFound,
    ErrorCode.GROUP_NAME_NOT_FOUND: NotFound,
    ErrorCode.GROUP_NAME_ALREADY_EXISTS: AlreadyExists,
    ErrorCode.GROUP_MEMBER_NOT_FOUND: NotFound,
    ErrorCode.GROUP_PARTITION_NOT_OWNED: PartitionRevoked,
    ErrorCode.BATCH_TOO_LARGE: BatchTooLarge,
    ErrorCode.DISK_FULL: DiskFull,
    ErrorCode.JOURNAL_FULL: JournalFull,
    ErrorCode.PARTITION_POISONED: PartitionPoisoned,
    ErrorCode.PARTITION_REFUSED: PartitionRefused,
    ErrorCode.CANNOT_READ_FILE: PartitionRefused,
    ErrorCode.CANNOT_READ_CONSUMER_OFFSETS: PartitionRefused,
    ErrorCode.PARTITION_REPLACED: PartitionReplaced,
    ErrorCode.PARTITION_NOT_GRANTED: Unauthorized,
    ErrorCode.LANE_PROTOCOL: LaneBroken,
    ErrorCode.LANE_CLOSED: BrokerGone,
    ErrorCode.WORKER_UNAVAILABLE: Unavailable,
    ErrorCode.BROKER_STOPPING: Unavailable,
    ErrorCode.CANNOT_WRITE_TO_FILE: PartitionPoisoned,
    ErrorCode.CANNOT_SYNC_FILE: PartitionPoisoned,
}


_MORE: Final = {
    ErrorCode.INVALID_OFFSET: "it is beyond the last message",
    ErrorCode.PARTITION_NOT_GRANTED: "it was deleted, or this client has not opened it",
}
"""What the name of an error number alone does not tell."""


def text_of(number: int) -> str:
    """A short text for an error number: its name in words, and what else there is to say."""
    try:
        code = ErrorCode(number)
    except ValueError:
        return f"error {number}"
    name = code.name.lower().replace("_", " ")
    return f"{name}: {_MORE[code]}" if code in _MORE else name


def error_from(number: int, message: str = "") -> ShmbrokerError:
    """The exception for an error number that a reply or a completion carried."""
    if number == ErrorCode.OK:
        raise AssertionError("no error has number 0")
    kind = _BY_CODE.get(number, ClientMistake if number < 20000 else Unavailable)
    return kind(message or text_of(number), number=number)
