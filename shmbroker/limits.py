"""Every hard bound of shmbroker, in one place, with the relations between them asserted.

Sizes are bytes unless the name says otherwise; times carry their unit in the name. A bound that a user meets is
enforced where the input enters (wire, lane, file, configuration, command line) and reported with its name.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

PAGE_SIZE: Final = 4096
SECTOR_SIZE: Final = 512
U32_MAX: Final = 2**32 - 1
U64_MAX: Final = 2**64 - 1

# --- batches and messages -------------------------------------------------------------------------------------------
BATCH_SIZE_MAX: Final = 64 * MIB - 4 * KIB
"""Largest record (header, frames, frame index, padding), enforced at every entry (rule 18)."""
MESSAGE_PAYLOAD_SIZE_MAX: Final = 64_000_000
MESSAGE_HEADERS_SIZE_MAX: Final = 100_000
MESSAGE_HEADER_KEY_SIZE_MAX: Final = 255
MESSAGE_HEADER_VALUE_SIZE_MAX: Final = 255
MESSAGES_KEY_SIZE_MAX: Final = 255
BATCH_MESSAGE_COUNT_MAX: Final = 1_000_000
TIMESTAMP_SPREAD_US_MAX: Final = U32_MAX

# --- names and counts of the catalog --------------------------------------------------------------------------------
NAME_SIZE_MAX: Final = 255
STREAM_COUNT_MAX: Final = 1_048_576
TOPIC_COUNT_PER_STREAM_MAX: Final = 4_096
PARTITION_ID_LIMIT: Final = 1_000_000
PARTITION_COUNT_PER_REQUEST_MAX: Final = 1_000
OPTION_COUNT_MAX: Final = 1_024
OPTIONS_SIZE_MAX: Final = 100_000
USERNAME_SIZE_MIN: Final = 3
USERNAME_SIZE_MAX: Final = 50
PASSWORD_SIZE_MIN: Final = 3
PASSWORD_SIZE_MAX: Final = 100
TOKEN_NAME_SIZE_MIN: Final = 3
TOKEN_NAME_SIZE_MAX: Final = 30
TOKEN_COUNT_PER_USER_MAX: Final = 100
USER_COUNT_MAX: Final = 16_384
LOGIN_FAILURES_MAX: Final = 10
"""Failed logins that one address has at once; then one each interval."""
LOGIN_FAILURE_INTERVAL_S: Final = 2.0
LOGIN_ADDRESSES_MAX: Final = 16_384
LOGINS_AT_ONCE_PER_ADDRESS: Final = 2
"""Whose passwords are looked at: the others of that address wait for their turn."""

# --- topic options --------------------------------------------------------------------------------------------------
SEGMENT_SIZE_MIN: Final = 1 * MIB
SEGMENT_SIZE_MAX: Final = 1 * GIB
SEGMENT_SIZE_DEFAULT: Final = 1 * GIB
SEGMENT_SIZE_MULTIPLE: Final = 512
MESSAGES_REQUIRED_TO_SAVE_DEFAULT: Final = 1_024
MESSAGES_REQUIRED_TO_SAVE_MAX: Final = 16_777_216
SIZE_REQUIRED_TO_SAVE_DEFAULT: Final = 1 * MIB
SIZE_REQUIRED_TO_SAVE_MAX: Final = 1 * GIB

# --- storage --------------------------------------------------------------------------------------------------------
INDEX_INTERVAL: Final = 256 * KIB
"""Log bytes between two index entries. A lookup scans at most this much of headers: 640 one-message batches, 0.6 ms."""
ALLOCATION_STEP_MIN: Final = 1 * MIB
ALLOCATION_STEP_MAX: Final = 64 * MIB
RING_SIZE_MIN: Final = 1 * MIB
RING_SIZE_MAX: Final = 64 * MIB
RING_SIZE_LARGE_RECORD: Final = 128 * MIB
"""A record above a quarter of RING_SIZE_MAX gets a ring of this size, if the budget allows (rule 18)."""
OFFSET_RESERVATION: Final = 2**26
DEDUPLICATION_PRODUCERS_MAX: Final = 4_096
DEDUPLICATION_WINDOW: Final = 256
"""Sequence numbers remembered for each producer and partition; a producer keeps fewer requests than this in flight."""
CONSUMER_OFFSETS_MAX: Final = 4_096
"""Stored offsets of consumers in one partition, and as many of groups."""
RETENTION_SEGMENTS_PER_STEP: Final = 16
RETENTION_PASS_S: Final = 0.2
"""A pass deletes step after step until this is over: small segments at full rate make hundreds a second, and each
deletion waits for the disk."""

# --- lanes ----------------------------------------------------------------------------------------------------------
LANE_SIZE_MIN: Final = 64 * KIB
LANE_SIZE_DEFAULT: Final = 4 * MIB
LANE_SIZE_MAX: Final = 256 * MIB
LANE_COMPLETION_COUNT: Final = 1_024
"""Slots of the completion ring; a client keeps fewer requests than this in flight on one lane."""
LANE_IN_FLIGHT_MAX: Final = LANE_COMPLETION_COUNT - 1
LANES_PER_WORKER_MAX: Final = 4_096
DOORBELL_WAIT_MS_MAX: Final = 100
"""No wait on a doorbell is longer: whoever rang may have died or lied, so every sleeper rescans (rule 12)."""

# --- the wire -------------------------------------------------------------------------------------------------------
FRAME_SIZE_MAX: Final = 64 * MIB
CONTROL_FRAME_SIZE_MAX: Final = 4 * MIB
SESSION_COUNT_MAX: Final = 16_384
WORKER_COUNT_MAX: Final = 64
HEARTBEAT_INTERVAL_S_MIN: Final = 10
GROUP_LEASE_S: Final = 10.0
"""How long a member that reads files by itself goes by one answer of the broker about what is its."""
GROUP_REVOCATION_S_MAX: Final = 30
"""How long a partition stays with a member that has not committed what it was handed out."""

# --- the HTTP gateway -----------------------------------------------------------------------------------------------
HTTP_BODY_SIZE_LIMIT: Final = 256 * MIB
"""What ``http.body_size_max`` may be at most."""
HTTP_WRITES_PER_USER_MAX: Final = 32
"""Requests of one user that change something, under way at a time: more are answered 429."""
HTTP_WRITES_MAX: Final = 128
"""The same of all users: more are answered 503."""
HTTP_CONNECTIONS_MAX: Final = 4_096
HTTP_POLL_COUNT_MAX: Final = 10_000
HTTP_POLL_SIZE_MAX: Final = 16 * MIB
"""Bytes of records in the answer of one poll; the rest comes with the next one."""

assert BATCH_SIZE_MAX < FRAME_SIZE_MAX
assert min(1.2 * HEARTBEAT_INTERVAL_S_MIN, GROUP_REVOCATION_S_MAX) > GROUP_LEASE_S
assert MESSAGE_PAYLOAD_SIZE_MAX < BATCH_SIZE_MAX
assert RING_SIZE_LARGE_RECORD >= BATCH_SIZE_MAX + 2 * PAGE_SIZE
assert LANE_SIZE_MAX >= 2 * (BATCH_SIZE_MAX + PAGE_SIZE)
assert LANE_IN_FLIGHT_MAX >= DEDUPLICATION_WINDOW
assert PAGE_SIZE % SECTOR_SIZE == 0
