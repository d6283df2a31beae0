"""Consumer groups as a client administers them: ordinary Iggy commands. Members join by ``Client.consumer(group=)``."""

from __future__ import annotations

from typing import Any

from shmbroker.client.descriptions import GroupDescription
from shmbroker.errors import ErrorCode, error_from
from shmbroker.wire import groups
from shmbroker.wire.bodies import Request
from shmbroker.wire.primitives import Identifier

TIMEOUT_S = 30.0


class GroupAdministration:
    """The part of a client about groups. Keeps nothing."""

    def _request(self, request: Request, timeout: float | None) -> Any:
        raise NotImplementedError

    def create_group(
        self, stream: Identifier, topic: Identifier, name: str, *, timeout: float | None = TIMEOUT_S
    ) -> GroupDescription:
        """A new group of the topic. Raises AlreadyExists."""
        created = self._request(groups.CreateGroup(stream, topic, name), timeout)
        return GroupDescription.of(created.group, created.members)

    def get_group(
        self, stream: Identifier, topic: Identifier, group: Identifier, *, timeout: float | None = TIMEOUT_S
    ) -> GroupDescription:
        """One group, with its members and their partitions."""
        found = self._request(groups.GetGroup(stream, topic, group), timeout)
        if found is None:
            raise error_from(ErrorCode.GROUP_NOT_FOUND, f"{stream}/{topic} has no consumer group {group}")
        return GroupDescription.of(found.group, found.members)

    def list_groups(
        self, stream: Identifier, topic: Identifier, *, timeout: float | None = TIMEOUT_S
    ) -> list[GroupDescription]:
        """All groups of a topic, without their members."""
        entries = self._request(groups.GetGroups(stream, topic), timeout) or ()
        return [GroupDescription.of(entry) for entry in entries]

    def delete_group(
        self, stream: Identifier, topic: Identifier, group: Identifier, *, timeout: float | None = TIMEOUT_S
    ) -> None:
        """Removes the group, what it stored, and its members' membership."""
        self._request(groups.DeleteGroup(stream, topic, group), timeout)
