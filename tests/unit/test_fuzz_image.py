# SPDX-License-Identifier: GPL-2.0-only
"""Whatever the bytes of an image are: an answer or one of our errors, never a crash or a hang.

Bytes of real images are changed where it hurts: in superblocks, headers, item heads, payloads, key
pointers. Checksums are made right again afterwards, so that the damage is met by the code behind
them. `BTRFS_MODEL_TESTS=long` looks at twenty times as many.
"""

import hashlib
import random
import shutil
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import corpus
import pytest
from damage import NAME, Broken
from hypothesis import given, settings
from hypothesis import strategies as st

import btrfs_model as bm
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.native.choice import select
from btrfs_model.ondisk.superblock import SUPER_SIZE
from btrfs_model.questions.check import check
from btrfs_model.questions.dumptree.statistics import tree_stats
from btrfs_model.questions.fiemap.api import fiemap
from btrfs_model.questions.usage.files import extent_references
from btrfs_model.questions.usage.files import extents as file_usage
from btrfs_model.questions.usage.space import du
from btrfs_model.volume.compare import compare_trees
from btrfs_model.volume.device.memory import Memory
from btrfs_model.volume.filesystem import Filesystem

EXAMPLES = max(1, settings.default.max_examples * 3 // 20)
IMAGES = ["send/random/seed-003", "features/dup", "features/csum-xxhash",
          "features/extended-refs", "features/skinny-metadata-off",
          "log/nd/nd_20_5/6.18/crash2.img.zst", "log/nd/nd_20_5/5.10/crash1.img.zst"]  # fmt: skip
SMALLEST = "features/csum-xxhash"
HANGS = 60  # seconds of the processor, of which a step takes less than one
LARGE = 1 << 20
FILES = 4

# what other tests left open is collected at any time; a commit leaves data unwritten, and says so
pytestmark = pytest.mark.filterwarnings(
    "error",
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::btrfs_model.base.errors.NotWrittenWarning",
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


@pytest.mark.claim("No damaged image crashes or hangs anything.")
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


@pytest.mark.claim("`check` finds damage where `btrfs check` does.", judge="progs")
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
        target.store(file, changed)
        try:
            ours = [str(finding) for finding in check(target.image(), verify_data=True)]
        except (BtrfsModelError, OSError) as error:
            ours = [str(error)]
        command = ["btrfs", "check", "--readonly", "--force", "--check-data-csum", str(file)]
        try:
            theirs = subprocess.run(command, capture_output=True, timeout=300).returncode
        except subprocess.TimeoutExpired:
            theirs = 0  # it hangs, which is no judgement
    target.store(file, changed)
    assert ours or theirs == 0


# ------------------------------------------------------------------------ what is changed there --

CHANGED = ["send/random/seed-003", "features/extended-refs",
           "log/nd/nd_20_5/6.18/crash2.img.zst", "log/nd/nd_20_5/5.10/crash1.img.zst"]  # fmt: skip
CASES = EXAMPLES
"""Damaged images of each; every one meets the writer, `receive` and the replay of its log."""
# what the tree checker lets pass: bytes of a payload, by the type of the item
_FREE_FIELDS = {
    1: [(0, 8), (8, 8), (16, 8), (16, 8), (24, 8), (40, 4), (52, 4), (64, 8)],
    12: [(0, 8)], 13: [(0, 8), (8, 8)], 60: [(0, 8)], 72: [(0, 8)], 84: [(0, 8)], 96: [(0, 8)],
    108: [(8, 8), (21, 8), (29, 8), (37, 8), (45, 8)], 132: [(16, 8), (176, 8), (200, 8)],
    144: [(0, 8)], 156: [(0, 8)], 168: [(0, 8), (8, 8)], 169: [(0, 8), (24, 1)], 251: [(0, 8)],
}  # fmt: skip
_VALUES = [0, 1, 2, 256, 257, 260, 4096, 1 << 20, 1 << 32, (1 << 63) - 4096, 1 << 63, 2**64 - 4096]


def damaged_items(target: Target, logical: int, choice: random.Random) -> None:
    """Change, drop, move or double items of a leaf: each is sound when it is looked at alone."""
    items = target.items(logical)
    for _ in range(choice.choice([1, 1, 2, 4])):
        at = choice.randrange(len(items))
        key, payload = items[at]
        how = choice.choice(["field", "field", "drop", "move", "double", "size"])
        if how == "field" and key[1] in _FREE_FIELDS:
            offset, size = choice.choice(_FREE_FIELDS[key[1]])
            value = (choice.choice(_VALUES) % 256**size).to_bytes(size, "little")
            items[at] = (key, payload[:offset] + value + payload[offset + size :])
        elif how == "drop" and len(items) > 1:
            del items[at]
        elif how == "size":
            items[at] = (key, payload[: choice.randrange(len(payload) + 1)])
        else:
            field = choice.choice([0, 2])
            moved = list(key)
            moved[field] = (moved[field] + choice.choice([1, -1, 4096, 100])) % 2**64
            items[at : at + (how == "move")] = [(tuple(moved), payload)]
    target.write_items(logical, items)


@pytest.fixture(scope="module")
def sent() -> bytes:
    """A stream with a bit of everything."""
    with bm.create(1 << 28) as fs:
        fs.create("q", 0o644)
        fs.write("q", 0, b"x" * 9000)
        fs.mkdir("d", 0o755)
        fs.link("q", "d/q")
        fs.setxattr("d", "user.a", b"v")
        fs.snapshot("", "s")
        return bytes(bm.send(fs, "s").data)


def change(fs: bm.WritableFilesystem, choice: random.Random) -> None:
    """Do this and that with what is there; each call fails by one of our errors or does not."""
    paths = [path for path, ino in list_files(fs) if ino > 256] or ["x"]
    for number in range(choice.choice([2, 6])):
        one = calls(fs, choice.choice(paths), choice.choice(paths), f"new{number}")
        outcome(choice.choice(one))
    fs.sync()


def calls(fs: bm.WritableFilesystem, path: str, other: str, new: str) -> list[Callable[[], Any]]:
    return [
        lambda: fs.create(new, 0o644),
        lambda: fs.mkdir(new, 0o755),
        lambda: fs.write(path, 0, b"b" * 70_000),
        lambda: fs.truncate(path, 1),
        lambda: fs.truncate(path, 100_000),
        lambda: fs.rename(path, other),
        lambda: fs.unlink(path),
        lambda: fs.link(path, new),
        lambda: fs.setxattr(path, "user.a", b"v" * 1000),
        lambda: fs.snapshot("", new),
        lambda: fs.clone_range(path, other, 0, 0, 0),
        lambda: fs.fsync(path),
        lambda: fs.chmod(path, 0o600),
        lambda: fs.delete_subvolume(path),
        fs.commit,
    ]


def list_files(fs: bm.WritableFilesystem) -> list[tuple[str, int]]:
    try:
        rows = fs.listing(5, content=False)
    except (BtrfsModelError, OSError):
        return []
    return list(zip(rows["path"].tolist(), rows["ino"].tolist(), strict=True))


def changed_image(target: Target, what: str, seed: int, stream: bytes) -> None:
    has_log = bool(target.sound.superblock.log_root)
    with bm.WritableFilesystem(
        Memory.copy_of_buffer(memoryview(target.map)),
        NAME,
        replay_behaviour="v6.18.44" if has_log else None,
    ) as fs:
        if what == "receive":
            bm.receive(fs, stream)
        elif what == "write":
            change(fs, random.Random(seed))


@pytest.mark.parametrize("name", CHANGED)
def test_damaged_images_are_changed_or_refused(
    targets: dict[str, Target], sent: bytes, name: str
) -> None:
    target = targets.setdefault(name, Target(name)) if name not in targets else targets[name]
    leaves = [block.logical for block in target.blocks if not block.level and block.nritems]
    for seed in range(CASES):
        choice = random.Random(f"{name} {seed}")
        logical = choice.choice(leaves)
        with target.restored(*((start, target.nodesize) for start in target.copies(logical))):
            damaged_items(target, logical, choice)
            for what in ("write", "receive"):
                with no_hang():
                    outcome(lambda what=what, seed=seed: changed_image(target, what, seed, sent))


@pytest.mark.claim("C and Python answer the same for damaged images.", judge="twins")
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
