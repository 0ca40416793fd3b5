# SPDX-License-Identifier: GPL-2.0-only
"""Logs that are not whole: each block that can be torn, and whatever leads to a log.

A replay names the file and the place and changes nothing: the filesystem that was committed stays.
"""

import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import corpus
import pytest
from damage import Broken

import btrfs_model as bm
from btrfs_model.cli import run as run_cli
from btrfs_model.ondisk.superblock import SUPER_OFFSETS
from btrfs_model.volume.filesystem import Filesystem

MADE = "a log of several levels"
LOGS = [
    MADE,
    "log/scenarios/subvolume_log/6.18/crash2.img.zst",
    "log/nd/nd_20_5/5.10/crash1.img.zst",
    "log/scenarios/sparse_and_holes/6.18/crash1.img.zst",
    *(["log/scenarios/multi_leaf_dir_deletes/6.12/crash2.img.zst",
       "log/nd/nd_1000_100/6.18/crash1.img.zst"]
      if corpus.LONG and corpus.have_oracle else []),
]  # fmt: skip
TWO = LOGS[1]
"""Logs of subvolumes 5 and 256."""

# offsets in struct btrfs_super_block, btrfs_header and btrfs_root_item
SUPER_LOG_ROOT, SUPER_LOG_ROOT_LEVEL = 96, 200
HEADER_GENERATION, HEADER_OWNER, HEADER_LEVEL, HEADER_SIZE = 80, 88, 100, 101
ROOT_GENERATION, ROOT_BYTENR, ROOT_LEVEL = 160, 176, 238
BEYOND = 1 << 50


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "made.img"
    with bm.create(128 << 20, 4096) as fs:
        fs.mkdir("d")
        fs.sync()
        for number in range(1500):
            fs.create(f"d/a long name of file {number}")
        assert fs.fsync("d") == "log"
        fs.save_crash(path)
    return path


@pytest.fixture
def image(request: pytest.FixtureRequest, made: Path) -> Path:
    name = request.param if hasattr(request, "param") else TWO
    return made if name == MADE else corpus.image(name)


@pytest.fixture
def broken(image: Path) -> Iterator[Broken]:
    """An image to break, which has to be whole again in the end."""
    found = Broken(image)
    yield found
    for at, piece in corpus.content(image).items():
        assert found.map[at : at + len(piece)] == piece


each_log = pytest.mark.parametrize("image", LOGS, indirect=True)


def log_blocks(fs: Filesystem) -> list[int]:
    assert fs.log_root_tree is not None
    trees = [fs.log_root_tree, *fs.log_trees.values()]
    return [block.logical for tree in trees for block in tree.blocks()]


def fails(broken: Broken, match: str) -> None:
    with pytest.raises(bm.errors.CorruptImageError, match=match) as caught:
        bm.replay_log(broken.fs())
    assert str(caught.value).startswith("broken.img: ")


# ------------------------------------------------------------------------ blocks that are torn --


def zeroed(broken: Broken, block: int) -> str:
    broken.write(block, 0, bytes(broken.nodesize), seal=False)
    return "checksum|level|address"


def half_written(broken: Broken, block: int) -> str:
    """The rest is what the place held before."""
    half = broken.nodesize // 2
    broken.write(block, half, b"\xa5" * half, seal=False)
    return "checksum"


def of_an_older_transaction(broken: Broken, block: int) -> str:
    """What the place held before: a whole block of a log, of a transaction that is over."""
    generation = int.from_bytes(broken.read(block, HEADER_GENERATION, 8), "little")
    broken.write(block, HEADER_GENERATION, struct.pack("<Q", generation - 1))
    return f"generation {generation - 1}"


def another_one(broken: Broken, block: int) -> str:
    """A block of the same log, whole but elsewhere."""
    others = [other for other in log_blocks(broken.fs()) if other != block]
    broken.write(block, 0, broken.read(others[-1], 0, broken.nodesize), seal=False)
    return "address"


def committed(broken: Broken, block: int) -> str:
    """A block of the subvolume itself."""
    tree = broken.fs().tree(5)
    broken.write(block, 0, broken.read(tree.bytenr, 0, broken.nodesize), seal=False)
    return "address"


def of_a_subvolume(broken: Broken, block: int) -> str:
    broken.write(block, HEADER_OWNER, struct.pack("<Q", 5))
    return "owned by tree 5"


def of_another_level(broken: Broken, block: int) -> str:
    (level,) = broken.read(block, HEADER_LEVEL, 1)
    broken.write(block, HEADER_LEVEL, bytes([level + 1]))
    # items are no pointers, if nothing else tells
    return "level|bad pointer"


DAMAGES = (zeroed, half_written, of_an_older_transaction, another_one, committed, of_a_subvolume,
           of_another_level)  # fmt: skip


@pytest.mark.claim(
    "A log with a torn block is refused: the block is named and nothing is written.",
    judge="unit",
)
@pytest.mark.parametrize("damage", DAMAGES)
@each_log
def test_any_block_that_is_torn_is_named(
    broken: Broken, damage: Callable[[Broken, int], str]
) -> None:
    blocks = log_blocks(broken.fs())
    for block in blocks if corpus.LONG else {*blocks[:3], *blocks[-2:]}:
        with broken.restored(*((at, broken.nodesize) for at in broken.copies(block))):
            why = damage(broken, block)
            fails(broken, rf"tree -6, block {block}, .*({why})")


def test_the_made_log_has_levels(made: Path) -> None:
    with bm.open(made) as fs:
        assert fs.log_trees[5].level == 2
        assert len(log_blocks(fs)) > 100
        with bm.replay_log(fs) as after:
            assert bm.check(after) == []


# ------------------------------------------------------------------------- what leads to a log --


def in_superblocks(broken: Broken, offset: int, data: bytes) -> None:
    for start in SUPER_OFFSETS:
        if start + 4096 <= len(broken.map):
            broken.map[start + offset : start + offset + len(data)] = data
    broken.seal_super()


def in_root_item(broken: Broken, offset: int, data: bytes) -> None:
    """Change what the tree of the logs says of the last one."""
    tree = broken.fs().log_root_tree
    assert tree is not None
    *_, last = tree.items()
    broken.write_item(last, offset, data)


def last_log_is_of(broken: Broken, subvolume: int) -> str:
    """The log of another subvolume; there are two."""
    tree = broken.fs().log_root_tree
    assert tree is not None
    *_, last = tree.items()
    assert last.key.offset == 256
    broken.write(last.block, HEADER_SIZE + 25 * last.slot + 9, struct.pack("<Q", subvolume))
    return rf"tree -6, block {last.block}, slot {last.slot}: item \({subvolume}, 132\) is missing"


def root_beyond(broken: Broken) -> str:
    in_superblocks(broken, SUPER_LOG_ROOT, struct.pack("<Q", BEYOND))
    return rf"tree -6, block {BEYOND}, .*no chunk maps"


def root_between_blocks(broken: Broken) -> str:
    at = broken.sound.superblock.log_root + 512
    in_superblocks(broken, SUPER_LOG_ROOT, struct.pack("<Q", at))
    return rf"offset {SUPER_OFFSETS[0] + SUPER_LOG_ROOT}: impossible value {at}"


def root_of_a_subvolume(broken: Broken) -> str:
    at = broken.fs().tree(5).bytenr
    in_superblocks(broken, SUPER_LOG_ROOT, struct.pack("<Q", at))
    return rf"tree -6, block {at}, .*generation"


def root_of_level(level: int) -> Callable[[Broken], str]:
    def damage(broken: Broken) -> str:
        in_superblocks(broken, SUPER_LOG_ROOT_LEVEL, bytes([level]))
        if level < 8:
            return rf"tree -6, block {broken.sound.superblock.log_root}, .*level"
        return rf"offset {SUPER_OFFSETS[0] + SUPER_LOG_ROOT_LEVEL}: impossible value {level}"

    damage.__name__ = f"root_of_level_{level}"
    return damage


def log_beyond(broken: Broken) -> str:
    in_root_item(broken, ROOT_BYTENR, struct.pack("<Q", BEYOND))
    return rf"tree -6, block {BEYOND}, .*no chunk maps"


def log_of_level_200(broken: Broken) -> str:
    in_root_item(broken, ROOT_LEVEL, bytes([200]))
    return r"tree -6, block \d+, .*impossible value 200"


def log_of_another_generation(broken: Broken) -> str:
    in_root_item(broken, ROOT_GENERATION, struct.pack("<Q", 3))
    return r"tree -6, block \d+, .*generation"


def log_of_a_subvolume_that_is_gone(broken: Broken) -> str:
    """A kernel passes over such a log in silence; no kernel leaves one."""
    return last_log_is_of(broken, 999)


def log_of_what_is_no_subvolume(broken: Broken) -> str:
    return last_log_is_of(broken, 9)


LEADS = (root_beyond, root_between_blocks, root_of_a_subvolume, root_of_level(1), root_of_level(8),
         root_of_level(255), log_beyond, log_of_level_200, log_of_another_generation,
         log_of_a_subvolume_that_is_gone, log_of_what_is_no_subvolume)  # fmt: skip


@pytest.mark.claim(
    "A log that leads nowhere is refused: the place is named and nothing is written.",
    judge="unit",
)
@pytest.mark.parametrize("damage", LEADS)
def test_what_leads_nowhere_is_named(broken: Broken, damage: Callable[[Broken], str]) -> None:
    blocks = log_blocks(broken.fs())
    places = [(at, broken.nodesize) for block in blocks for at in broken.copies(block)]
    supers = [(at, 4096) for at in SUPER_OFFSETS if at + 4096 <= len(broken.map)]
    with broken.restored(*places, *supers):
        match = damage(broken)
        fails(broken, match)


# ----------------------------------------------------------------------------------- the command --


@pytest.mark.parametrize("damage", [zeroed, of_an_older_transaction, *LEADS])
def test_command_says_it_in_a_line_and_leaves_nothing_behind(
    damage: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Broken(corpus.image(TWO))
    if damage in DAMAGES:
        block = log_blocks(broken.fs())[-1]
        match = rf"tree -6, block {block}, .*({damage(broken, block)})"
    else:
        match = damage(broken)
    source = tmp_path / "crashed.img"
    corpus.scratch_copy(TWO, source)
    write_difference(broken, source)
    before = corpus.content(source)
    assert run_cli(["replay-log", str(source), "-o", str(tmp_path / "new.img")]) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert re.match(rf"btrfs-model: {re.escape(str(source))}: .*{match}", line)
    assert [path.name for path in tmp_path.iterdir()] == ["crashed.img"]
    assert corpus.content(source) == before


def write_difference(broken: Broken, target: Path) -> None:
    """Make a copy of the sound image what the broken one is."""
    piece = 1 << 20
    with target.open("r+b") as file:
        for at in range(0, len(broken.map), piece):
            data = broken.map[at : at + piece]
            file.seek(at)
            if file.read(piece) != data:
                file.seek(at)
                file.write(data)
