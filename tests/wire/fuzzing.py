"""What any bytes must do to everything that takes bytes from a peer: a value or an error number, never an exception.

``look_at(data)`` is the whole of it; the first byte says which part. ``python -m tests.wire.fuzzing [DIRECTORY]
[-max_total_time=SECONDS ...]`` has atheris (libFuzzer) look for bytes that break it, from the recorded frames on; what
it finds is kept in ``finds/``, and ``test_fuzzing.py`` looks at those and at the frames.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from shmbroker.errors import ErrorCode, ShmbrokerError
from shmbroker.formats.batch import unpack_header
from shmbroker.formats.headers import decode_headers, pack_pairs, unpack_pairs
from shmbroker.front.records import record_of
from shmbroker.storage.validation import content_fault
from shmbroker.wire.codes import BY_CODE
from shmbroker.wire.commands import decode_reply, decode_request, encode_reply
from shmbroker.wire.connection import ClientConnection, ConnectionFault, ServerConnection
from shmbroker.wire.frame import HEADER_SIZE, EvictionReason, RequestHeader, decode_request_header
from shmbroker.wire.messages import SendMessages

HERE = Path(__file__).resolve().parent
FRAME_SIZE_MAX = 1 << 16
LENGTH_POSITION = 32
COUNT_POSITION = 48
"""Of a batch's header."""
CODES = tuple(sorted(BY_CODE))


def requests_in_pieces(data: bytes) -> None:
    """A server's end, fed in two pieces; each request is answered in all three ways."""
    server = ServerConnection(FRAME_SIZE_MAX)
    cut = int.from_bytes(data[:2], "little") % (len(data) + 1)
    for piece in (data[2:][:cut], data[2:][cut:]):
        server.feed(piece)
        while (found := server.next_request()) is not None:
            if isinstance(found, ConnectionFault):
                return
            assert found.header.encode()[:HEADER_SIZE]
            server.reply(found)
            server.refusal(found, ErrorCode.INVALID_COMMAND, "text")
            server.eviction(found, EvictionReason.NO_SESSION)
        assert server.pending_size <= 2 * FRAME_SIZE_MAX + len(data)


def replies(data: bytes) -> None:
    """A client's end that waits for the reply to some command."""
    client = ClientConnection(1, 1, FRAME_SIZE_MAX)
    client.request_head(BY_CODE[CODES[data[0] % len(CODES)]], 0)
    client.feed(data[1:])
    client.next_answer()


def request_bodies(data: bytes) -> None:
    """What is understood can be said again, and is understood then. Not always the same bytes: options are sorted,
    and a number may not be one."""
    code = CODES[data[0] % len(CODES)]
    request = decode_request(code, data[1:])
    if not isinstance(request, ErrorCode):
        said = request.encode()
        again = decode_request(code, said)
        assert not isinstance(again, ErrorCode)
        assert again.encode() == said


def reply_bodies(data: bytes) -> None:
    """The same of replies."""
    code = CODES[data[0] % len(CODES)]
    reply = decode_reply(code, data[1:])
    if not isinstance(reply, ErrorCode):
        said = encode_reply(reply)
        again = decode_reply(code, said)
        assert not isinstance(again, ErrorCode)
        assert encode_reply(again) == said


def batches(data: bytes) -> None:
    """A batch of the wire, as the front makes a record of it, and as the worker checks that record. What the front has
    let through with a sound index, the worker refuses by number at most. Length and count are those of the request."""
    if len(data) < HEADER_SIZE or not any(data[COUNT_POSITION : COUNT_POSITION + 4]):
        return
    sound = data[:LENGTH_POSITION] + len(data).to_bytes(8, "little") + data[LENGTH_POSITION + 8 :]
    made = record_of(memoryview(sound), 1, 1)
    if isinstance(made, ErrorCode):
        return
    buffers, length = made
    record = b"".join(bytes(buffer) for buffer in buffers)
    assert len(record) == length
    header = unpack_header(record)
    content = memoryview(record)[HEADER_SIZE : header.batch_length + 4 * header.message_count]
    fault = content_fault(header, content)
    assert fault is None or isinstance(fault, ErrorCode)


def sends(data: bytes) -> None:
    """A whole request to send: what the codec lets through is looked at as a batch."""
    request = decode_request(SendMessages.CODE, data)
    if isinstance(request, SendMessages):
        batches(bytes(request.batch))


def user_headers(data: bytes) -> None:
    """Headers of a message: the caller's mistake, or a value that comes back."""
    try:
        pairs = unpack_pairs(data)
    except ShmbrokerError:
        return
    assert unpack_pairs(pack_pairs(pairs)) == pairs
    decode_headers(data)


PARTS: tuple[Callable[[bytes], None], ...] = (
    requests_in_pieces, replies, request_bodies, reply_bodies, sends, user_headers, batches,
)  # fmt: skip


def look_at(data: bytes) -> None:
    """Raises for bytes that break something."""
    if len(data) >= 3:
        PARTS[data[0] % len(PARTS)](data[1:])


def seeds() -> Iterator[bytes]:
    """Every recorded frame, for every part that could take it."""
    for vector in json.loads(gzip.decompress((HERE / "vectors.json.gz").read_bytes())):
        if vector["direction"] == "computed":
            continue
        frame = bytes.fromhex(vector["hex"])
        number = CODES.index(vector["code"]) if vector["code"] in CODES else 0
        if vector["direction"] == "reply":
            yield bytes((1, number)) + frame
            yield bytes((3, number)) + frame[HEADER_SIZE:]
            continue
        yield b"\0\0\1" + frame
        yield bytes((2, number)) + frame[HEADER_SIZE:]
        header = decode_request_header(frame)
        if isinstance(header, RequestHeader) and number == CODES.index(SendMessages.CODE):
            request = decode_request(SendMessages.CODE, frame[HEADER_SIZE:])
            yield b"\4" + frame[HEADER_SIZE:]
            if isinstance(request, SendMessages):
                yield b"\6" + bytes(request.batch)


def main(arguments: list[str]) -> None:
    """Fuzzes until the limits that libFuzzer is given. Bytes that break something are left in ``finds/``."""
    import atheris  # not needed by the tests

    corpus = Path(arguments[1] if len(arguments) > 1 and not arguments[1].startswith("-") else ".fuzz")
    corpus.mkdir(exist_ok=True)
    for number, seed in enumerate(seeds()):
        (corpus / f"seed-{number:04}").write_bytes(seed)
    (HERE / "finds").mkdir(exist_ok=True)
    atheris.instrument_all()
    options = [f"-artifact_prefix={HERE}/finds/", "-rss_limit_mb=1024"]
    options += [each for each in arguments[1:] if each.startswith("-")]
    atheris.Setup([arguments[0], str(corpus), *options], look_at)
    atheris.Fuzz()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main(sys.argv)
