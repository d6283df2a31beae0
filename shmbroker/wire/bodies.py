"""The shapes that many request bodies share: nothing, a stream, a topic, a group. A command adds its code to one.

A request or reply is a frozen dataclass with ``encode() -> bytes`` and ``decode(reader)``. Both raise ``Malformed``,
which ``commands`` and ``connection`` turn into error numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

from shmbroker.wire import primitives
from shmbroker.wire.primitives import Identifier, Reader


class Request(Protocol):
    """What every request offers."""

    CODE: ClassVar[int]

    def encode(self) -> bytes:
        """The body."""
        ...


class Reply(Protocol):
    """What every reply that is not empty offers."""

    def encode(self) -> bytes:
        """The body, without the result section."""
        ...


@dataclass(frozen=True, slots=True)
class NothingBody:
    """An empty body."""

    def encode(self) -> bytes:
        """No bytes."""
        return b""

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """Takes nothing."""
        del reader
        return cls()


@dataclass(frozen=True, slots=True)
class StreamBody:
    """One stream."""

    stream: Identifier

    def encode(self) -> bytes:
        """identifier."""
        return primitives.identifier(self.stream)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """identifier."""
        return cls(reader.identifier())


@dataclass(frozen=True, slots=True)
class TopicBody:
    """One topic."""

    stream: Identifier
    topic: Identifier

    def encode(self) -> bytes:
        """identifier, identifier."""
        return topic_bytes(self.stream, self.topic)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """identifier, identifier."""
        return cls(reader.identifier(), reader.identifier())


@dataclass(frozen=True, slots=True)
class PartitionsBody:
    """A number of partitions of one topic."""

    stream: Identifier
    topic: Identifier
    count: int

    def encode(self) -> bytes:
        """identifier, identifier, u32."""
        return topic_bytes(self.stream, self.topic) + primitives.U32.pack(self.count)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """identifier, identifier, u32."""
        return cls(reader.identifier(), reader.identifier(), reader.u32())


@dataclass(frozen=True, slots=True)
class GroupBody:
    """One consumer group."""

    stream: Identifier
    topic: Identifier
    group: Identifier

    def encode(self) -> bytes:
        """identifier, identifier, identifier."""
        return topic_bytes(self.stream, self.topic) + primitives.identifier(self.group)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """identifier, identifier, identifier."""
        return cls(reader.identifier(), reader.identifier(), reader.identifier())


@dataclass(frozen=True, slots=True)
class UserBody:
    """One user."""

    user: Identifier

    def encode(self) -> bytes:
        """identifier."""
        return primitives.identifier(self.user)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """identifier."""
        return cls(reader.identifier())


def topic_bytes(stream: Identifier, topic: Identifier) -> bytes:
    """identifier, identifier."""
    return primitives.identifier(stream) + primitives.identifier(topic)
