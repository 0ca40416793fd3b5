# SPDX-License-Identifier: GPL-2.0-only
"""Whatever the bytes of an image are: an answer or one of our errors, never a crash or a hang.

Bytes of real images are changed where it hurts: in superblocks, headers, item heads, payloads, key
pointers. Checksums are made right again afterwards, so that the damage is met by the code behind
them. `BTRFS_MODEL_TESTS=long` looks at twenty times as many.
"""

import hashlib
import shutil
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import corpus
import pytest
from damage import Broken
from hypothesis import given, settings
from hypothesis import strategies as st

from btrfs_model.btree import compare_trees
from btrfs_model.check import check
from btrfs_model.errors import BtrfsModelError
from btrfs_model.fiemap import fiemap
from btrfs_model.filesystem import Filesystem
from btrfs_model.kernels import select
from btrfs_model.ondisk.superblock import SUPER_SIZE
from btrfs_model.stats import tree_stats
from btrfs_model.usage import du, extent_references
from btrfs_model.usage import extents as file_usage

EXAMPLES = max(1, settings.default.max_examples * 3 // 10)
IMAGES = ["send/random/seed-003", "features/dup", "features/csum-xxhash",
          "features/extended-refs", "features/skinny-metadata-off",
          "log/nd/nd_20_5/6.18/crash2.img.zst", "log/nd/nd_20_5/5.10/crash1.img.zst"]  # fmt: skip
SMALLEST = "features/csum-xxhash"
HANGS = 60  # seconds of the processor, of which a step takes less than one
LARGE = 1 << 20
FILES = 4

# what other tests left open is collected at any time
pytestmark = pytest.mark.filterwarnings(
    "error", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

Damage = tuple[str, int, int, int, bytes]

numbers = st.one_of(
    st.sampled_from([0, 1, 2, 4095, 4096, 65536, 1 << 30, 1 << 31, 1 << 32, 1 << 48, 1 << 63,
                     (1 << 64) - 1, (1 << 64) - 4096]),
    st.integers(0, (1 << 64) - 1),
    st.integers(0, 300),
)  # fmt: skip
values = st.one_of(
    st.binary(min_size=1, max_size=1),
    numbers.map(lambda number: struct.pack("<Q", number)),
    numbers.map(lambda number: struct.pack("<I", number & 0xFFFFFFFF)),
    numbers.map(lambda number: struct.pack("<H", number & 0xFFFF)),
)
damages = st.tuples(
    st.sampled_from(["header", "head", "head", "payload", "payload", "payload", "any", "super"]),
    st.integers(0, 1 << 16),
    st.integers(0, 1 << 10),
    st.integers(0, 1 << 14),
    values,
)


class Target(Broken):
    """A broken image that knows its tree blocks."""

    def __init__(self, name: str) -> None:
        super().__init__(corpus.image(name))
        fs = self.fs()
        found = {}
        for tree in [*fs.trees.values(), *fs.log_trees.values()]:
            for block in tree.blocks():
                found[block.logical] = block
        self.blocks = [found[logical] for logical in sorted(found)]

    @contextmanager
    def damaged(self, damage: Damage) -> Iterator[None]:
        """The image with one change."""
        kind, which, slot, offset, value = damage
        if kind == "super":
            start = self.sound.superblock.offset
            offset = 32 + offset % (SUPER_SIZE - 32 - len(value))
            with self.restored((start, SUPER_SIZE), *self._other_supers()):
                for at in (start, *(place for place, _ in self._other_supers())):
                    self.map[at + offset : at + offset + len(value)] = value
                self.seal_super()
                yield
            return
        block = self.blocks[which % len(self.blocks)]
        at = self._place(kind, block.logical, block.level, block.nritems, slot, offset)
        at = min(at, self.nodesize - len(value))
        places = [(start, self.nodesize) for start in self.copies(block.logical)]
        with self.restored(*places):
            self.write(block.logical, at, value)
            yield

    def _other_supers(self) -> list[tuple[int, int]]:
        first = self.sound.superblock.offset
        return [(at, SUPER_SIZE) for at in self.sound.superblock.copies if at != first]

    def _place(
        self, kind: str, logical: int, level: int, nritems: int, slot: int, offset: int
    ) -> int:
        """Offset in the block of a change of a kind."""
        if kind == "header":
            return 32 + offset % 69
        if kind == "any" or not nritems:
            return 32 + offset % (self.nodesize - 32)
        size = 33 if level else 25
        head = 101 + slot % nritems * size
        if kind == "head" or level:
            return head + offset % size
        start, length = struct.unpack("<II", self.read(logical, head + 17, 8))
        return 101 + int(start) + offset % max(int(length), 1)


def digest(value: Any) -> str:
    raw = value if isinstance(value, bytes) else repr(value).encode()
    return hashlib.sha256(raw).hexdigest()


def outcome(step: Callable[[], Any]) -> str:
    """What a step gives, or the error that it ends in."""
    try:
        return digest(step())
    except (BtrfsModelError, OSError) as error:
        assert "\n" not in str(error)
        return f"{type(error).__name__}: {error}"


def scan(fs: Filesystem, objectid: int) -> Any:
    columns = fs.tree(objectid).scan()
    return {name: column.tobytes() for name, column in columns.items()}


def backwards(fs: Filesystem, objectid: int) -> Any:
    return [(item.key, bytes(item.data)) for item in fs.tree(objectid).items(reverse=True)]


def read(fs: Filesystem, objectid: int) -> Any:
    subvolume = fs.subvolume(objectid)
    rows = fs.listing(objectid, content=False)
    files = rows[(rows["sha256"].isna()) & (rows["size"] < LARGE) & (rows["ino"] > 255)]
    inos = files["ino"].tolist()[:FILES]
    return rows.to_dict("records"), [
        outcome(lambda ino=ino: subvolume.read_file(ino)) for ino in inos
    ]


def extents(fs: Filesystem, objectid: int) -> Any:
    inos = fs.listing(objectid, content=False)["ino"].tolist()
    return [
        outcome(lambda ino=ino, at=at: fiemap(fs, objectid, ino, behaviour=at).to_dict("list"))
        for ino in inos[1 : 1 + FILES // 2]
        for at in ("v5.10.46", "v6.1.176", "v6.18.44")
    ]


def usage(fs: Filesystem, objectid: int) -> Any:
    inos = fs.listing(objectid, content=False)["ino"].tolist()
    return [
        outcome(lambda ino=ino, ask=ask: ask(fs, objectid, ino).to_dict("list"))
        for ino in inos[1:3]
        for ask in (file_usage, extent_references)
    ]


def differences(fs: Filesystem) -> Any:
    both = [*fs.subvolume_ids, *fs.subvolume_ids][-2:]
    return list(compare_trees(*(fs.tree(objectid) for objectid in both))) if both else None


def exercise(target: Target) -> list[str]:
    """Do all that can be done with an image; what each step gave."""
    try:
        fs = target.fs()
        trees, subvolumes = list(fs.trees), fs.subvolume_ids
    except (BtrfsModelError, OSError) as error:
        assert "\n" not in str(error)
        return [f"{type(error).__name__}: {error}"]
    steps: list[Callable[[], Any]] = [
        lambda: fs.subvolumes().to_dict("records"),
        lambda: {objectid: tree.blocks() for objectid, tree in fs.log_trees.items()},
        lambda: tree_stats(fs).to_dict("records"),
        lambda: differences(fs),
        lambda: du(fs).to_dict("records"),
        lambda: [str(finding) for finding in check(fs, verify_data=True)],
    ]
    for objectid in trees:
        steps.append(lambda objectid=objectid: scan(fs, objectid))
        steps.append(lambda objectid=objectid: backwards(fs, objectid))
    steps += [lambda objectid=objectid: read(fs, objectid) for objectid in subvolumes]
    steps += [lambda objectid=objectid: extents(fs, objectid) for objectid in subvolumes]
    steps += [lambda objectid=objectid: usage(fs, objectid) for objectid in subvolumes]
    return [outcome(step) for step in steps]


class HangError(Exception):
    """A step did not end. No OSError, which would count as what it ended in."""


@contextmanager
def no_hang() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise HangError(f"no answer after {HANGS} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, HANGS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@pytest.fixture(scope="module")
def targets() -> dict[str, Target]:
    return {}


@pytest.mark.parametrize("name", IMAGES)
@settings(max_examples=EXAMPLES)
@given(st.lists(damages, min_size=8, max_size=8))
def test_damaged_images_give_answers_or_errors(
    targets: dict[str, Target], name: str, several: list[Damage]
) -> None:
    target = targets.setdefault(name, Target(name)) if name not in targets else targets[name]
    for damage in several:
        with target.damaged(damage), no_hang():
            exercise(target)


@pytest.mark.skipif(shutil.which("btrfs") is None, reason="btrfs-progs is not installed")
@settings(max_examples=EXAMPLES, derandomize=True)
@given(damages)
def test_what_btrfs_check_finds_we_find(
    targets: dict[str, Target], tmp_path_factory: pytest.TempPathFactory, damage: Damage
) -> None:
    """The judge from outside: where btrfs-progs see damage, so do we."""
    target = targets[SMALLEST] if SMALLEST in targets else Target(SMALLEST)
    targets[SMALLEST] = target
    file = tmp_path_factory.getbasetemp() / "judged.img"
    if not file.exists():
        corpus.scratch_copy(SMALLEST, file)
    whole = {block.logical: target.read(block.logical, 0, target.nodesize)
             for block in target.blocks}  # fmt: skip
    with target.damaged(damage):
        changed = [logical for logical, before in whole.items()
                   if target.read(logical, 0, target.nodesize) != before]  # fmt: skip
        if not changed:
            return
        patch(target, file, changed)
        try:
            ours = [str(finding) for finding in check(target.image(), verify_data=True)]
        except (BtrfsModelError, OSError) as error:
            ours = [str(error)]
        command = ["btrfs", "check", "--readonly", "--force", "--check-data-csum", str(file)]
        try:
            theirs = subprocess.run(command, capture_output=True, timeout=300).returncode
        except subprocess.TimeoutExpired:
            theirs = 0  # it hangs, which is no judgement
    patch(target, file, changed)
    assert ours or theirs == 0


def patch(target: Target, file: Path, blocks: list[int]) -> None:
    """Bring tree blocks of a file to what the mapping holds."""
    with file.open("r+b") as image:
        for logical in blocks:
            for start in target.copies(logical):
                image.seek(start)
                image.write(target.map[start : start + target.nodesize])


@settings(max_examples=2 * EXAMPLES)
@given(damages)
def test_python_and_c_say_the_same_of_damaged_images(
    targets: dict[str, Target], damage: Damage
) -> None:
    target = targets[SMALLEST] if SMALLEST in targets else Target(SMALLEST)
    targets[SMALLEST] = target
    with target.damaged(damage), no_hang():
        in_c = exercise(target)
        with select("python"):
            assert exercise(target) == in_c
