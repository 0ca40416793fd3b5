# SPDX-License-Identifier: GPL-2.0-only
"""Memory that holds a device goes to a file and to other memory as it is, with its holes."""

import random
from pathlib import Path

import pytest

from btrfs_model.volume.memory import Memory

PAGE = 4096


@pytest.mark.parametrize("size", [5, PAGE, PAGE + 1, 100 * PAGE, (40 << 20) + 123])
def test_what_is_saved_is_what_is_there(size: int, tmp_path: Path) -> None:
    rng, memory, file = random.Random(size), Memory(size), tmp_path / "saved"
    for _ in range(40):
        at = rng.randrange(size)
        length = min(rng.choice([1, 5000, PAGE, 70_000]), size - at)
        # zeros that were written, and pages of which only the last byte is not zero
        zeros = bytes(length)
        memory.buffer[at : at + length] = rng.choice(
            [zeros, zeros[1:] + b"x", rng.randbytes(length)]
        )
    memory.save(file)
    assert file.read_bytes() == bytes(memory.buffer)
    assert bytes(memory.copy().buffer) == bytes(memory.buffer)


def test_pages_of_zeros_are_holes(tmp_path: Path) -> None:
    memory, file = Memory(64 << 20), tmp_path / "saved"
    memory.buffer[:] = bytes(64 << 20)
    memory.buffer[(20 << 20) + 4095] = 1
    memory.save(file)
    assert file.stat().st_blocks * 512 < 1 << 20
