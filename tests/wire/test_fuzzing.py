"""Bytes that once broke something, the recorded frames, and damaged ones: all through what the fuzzer looks at."""

from __future__ import annotations

import random

from tests.wire.fuzzing import HERE, look_at, seeds

FINDS = sorted((HERE / "finds").glob("*"))


def test_what_the_fuzzer_found_is_mended() -> None:
    for path in FINDS:
        print(path)
        look_at(path.read_bytes())


def test_recorded_frames_break_nothing() -> None:
    count = 0
    for seed in seeds():
        look_at(seed)
        count += 1
    assert count > 800


def test_damaged_frames_break_nothing(rng: random.Random) -> None:
    for seed in seeds():
        damaged = bytearray(seed)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
        try:
            look_at(bytes(damaged[: rng.randrange(len(damaged)) if rng.random() < 0.2 else None]))
        except Exception:
            print("these bytes:", bytes(damaged).hex())
            raise
