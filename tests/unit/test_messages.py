# SPDX-License-Identifier: GPL-2.0-only
"""What users are told when something is not there, is not btrfs, or is misspelt."""

import errno
import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import corpus
import pytest
import zstandard

import btrfs_model as bm
from btrfs_model.base.counters import Work
from btrfs_model.base.errors import (
    CorruptImageError,
    NoSuchFileError,
    NotBtrfsError,
    NotCommittedError,
    SubvolumeNotFoundError,
)
from btrfs_model.cli import run
from btrfs_model.cost import device
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.workloads import NAMES, load
from btrfs_model.ondisk.hashes import csum

SIZE = 256 << 20


@pytest.fixture(scope="module")
def image() -> Path:
    return corpus.image("send/send-truncate/n500")


@pytest.fixture
def command_line(capfd: pytest.CaptureFixture[str]):
    """Run the command line in this process: the exit status, and the lines of its errors."""

    def call(*arguments: object) -> tuple[int, list[str]]:
        capfd.readouterr()
        status = run([str(argument) for argument in arguments])
        return status, capfd.readouterr().err.splitlines()

    return call


# ------------------------------------------------------------------------------- not committed --


@pytest.fixture
def fs():
    """The file `a` and the subvolume `v` are of the running transaction."""
    with bm.create(SIZE) as fs:
        fs.create("old", 0o644)
        fs.create_subvolume("there")
        fs.sync()
        fs.create("a", 0o644)
        fs.write("a", 0, b"x" * 9000)
        fs.create("there/b", 0o644)
        fs.create_subvolume("v")
        yield fs


READERS: dict[str, Callable[[bm.WritableFilesystem, str | int], object]] = {
    "fiemap": lambda fs, file: bm.fiemap(fs, 5, file),
    "extents": lambda fs, file: bm.extents(fs, 5, file),
    "extent_references": lambda fs, file: bm.extent_references(fs, 5, file),
    "read_file": lambda fs, file: fs.read_file(5, file),
    "inode": lambda fs, file: fs.subvolume(5).inode(file),
    "readdir": lambda fs, file: list(fs.subvolume(5).readdir(file)),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("file", "shown"), [("a", "file 'a'"), (258, "inode 258")])
def test_a_file_that_is_not_committed(
    fs: bm.WritableFilesystem, reader: str, file: str | int, shown: str
) -> None:
    with pytest.raises(NotCommittedError) as caught:
        READERS[reader](fs, file)
    assert str(caught.value) == (
        f"<memory>: subvolume 5: {shown} is not committed yet; call sync()"
    )
    assert caught.value.errno == errno.ENOENT
    fs.sync()
    if reader != "readdir":
        READERS[reader](fs, file)


@pytest.mark.claim(
    "What is not there, not committed or no btrfs filesystem is refused in one line."
)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("file", "shown"),
    [("b", "file 'b'"), ("a/b", "file 'a/b'"), ("v", "file 'v'"), ("v/b", "file 'v/b'"),
     (999, "inode 999")],
)  # fmt: skip
def test_a_file_that_is_not_there(
    fs: bm.WritableFilesystem, reader: str, file: str | int, shown: str
) -> None:
    with pytest.raises(NoSuchFileError) as caught:
        READERS[reader](fs, file)
    assert str(caught.value) == f"<memory>: subvolume 5: there is no {shown}"
    assert caught.value.errno == errno.ENOENT
    assert not isinstance(caught.value, SubvolumeNotFoundError)


@pytest.mark.parametrize("which", ["v", b"v", 258 - 1])
def test_a_subvolume_that_is_not_committed(
    fs: bm.WritableFilesystem, which: str | bytes | int
) -> None:
    for read in (fs.subvolume, fs.listing, lambda which: bm.send(fs, which)):
        with pytest.raises(NotCommittedError, match="is not committed yet; call sync"):
            read(which)
    fs.sync()
    assert fs.subvolume(which).id == 257


def test_a_tree_that_is_not_committed(fs: bm.WritableFilesystem) -> None:
    with pytest.raises(NotCommittedError):
        fs.tree(257)
    with pytest.raises(SubvolumeNotFoundError, match="no tree 300"):
        fs.tree(300)


def test_a_file_in_another_subvolume_that_is_not_committed(fs: bm.WritableFilesystem) -> None:
    with pytest.raises(NotCommittedError, match="subvolume 256: file 'b'"):
        fs.read_file("there", "b")


@pytest.mark.parametrize("which", ["a", "w", 300, "there/b"])
def test_a_subvolume_that_is_not_there(fs: bm.WritableFilesystem, which: str | int) -> None:
    with pytest.raises(SubvolumeNotFoundError) as caught:
        fs.subvolume(which)
    assert caught.value.errno == errno.ENOENT


def test_what_was_deleted_is_not_there(fs: bm.WritableFilesystem) -> None:
    before = fs.subvolume("there")
    for path in ("v", "there"):
        fs.delete_subvolume(path)
    fs.commit()
    fs.clean_subvolumes()
    with pytest.raises(SubvolumeNotFoundError):
        fs.subvolume("v")
    with pytest.raises(SubvolumeNotFoundError):
        fs.subvolume(257)
    with pytest.raises(NoSuchFileError):
        before.inode("b")


def test_looking_for_it_changes_and_counts_nothing(fs: bm.WritableFilesystem) -> None:
    def work(file: str) -> dict[str, int]:
        with bm.counting() as counted, pytest.raises(FileNotFoundError):
            bm.fiemap(fs, 5, file)
        return dict(counted)

    work("b")
    before = fs.crash()
    assert work("a") == work("b")
    assert fs.crash() == before


# ------------------------------------------------------------------------------------ no btrfs --


def whole() -> bytes:
    with bm.create(SIZE) as fs:
        return fs.crash()


def ext4() -> bytes:
    head = bytearray(1 << 20)
    head[1080:1082] = b"\x53\xef"
    return bytes(head)


def stream() -> bytes:
    return bytes(bm.StreamWriter(version=1).header())


OTHERS = {
    "empty": (lambda: b"", "no btrfs filesystem: the file is empty"),
    "text": (lambda: b"hello\n", "no btrfs filesystem: it has 6 bytes, its superblock would end at "
             "69632"),
    "zeros": (lambda: bytes(1 << 20), "no btrfs filesystem: there is no superblock at byte 65536"),
    "ext4": (ext4, "no btrfs filesystem: it looks like an ext2, ext3 or ext4 filesystem"),
    "xfs": (lambda: b"XFSB" + bytes(1 << 20),
            "no btrfs filesystem: it looks like an XFS filesystem"),
    "zstd": (lambda: zstandard.compress(whole()[: 1 << 20]),
             "no btrfs filesystem: it looks like data compressed by zstd"),
    "gzip": (lambda: gzip.compress(b"x"),
             "no btrfs filesystem: it looks like data compressed by gzip"),
    "stream": (stream, "no btrfs filesystem: it looks like a send stream"),
    "cut-short": (lambda: whole()[:69631],
                  "no btrfs filesystem: it has 69631 bytes, its superblock would end at 69632"),
    "cut": (lambda: whole()[: 1 << 20],
            f"the image is cut off: it has {1 << 20} of {SIZE} bytes"),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_filesystem(tmp_path: Path, kind: str) -> None:
    make, wanted = OTHERS[kind]
    path = tmp_path / kind
    path.write_bytes(make())
    for read in (bm.open, bm.WritableFilesystem.load, bm.check):
        with pytest.raises(CorruptImageError) as caught:
            read(path)
        assert str(caught.value) == f"{path}: {wanted}"
        assert isinstance(caught.value, NotBtrfsError) == wanted.startswith("no btrfs")


def test_a_superblock_of_which_the_first_copy_is_gone_is_still_one(tmp_path: Path) -> None:
    image = bytearray(whole())
    image[65536:69632] = bytes(4096)
    path = tmp_path / "second"
    path.write_bytes(image)
    with bm.open(path) as fs:
        assert fs.image.superblock.offset == 64 << 20


@pytest.mark.parametrize("kind", ["fifo", "null", "directory"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    wanted = {
        "fifo": "it is a FIFO",
        "null": "it is a character device",
        "directory": "it is a directory, and no file in it has a superblock",
    }[kind]
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "null":
        path = Path(os.devnull)
    else:
        path.mkdir()
    # a process of its own, so that one that waits for the other end can be ended
    ran = subprocess.run(
        [sys.executable, "-m", "btrfs_model.cli", "subvolumes", path],
        capture_output=True,
        timeout=600,
        text=True,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.count("\n") == 1
    assert ran.stderr.startswith(f"btrfs-model: {path}: ")
    assert wanted in ran.stderr


# ---------------------------------------------------------------------------------- behaviours --


@pytest.mark.claim("A toggle that changes nothing is warned of.")
@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ("v6.12 - send-inline-not-hole", "v6.12 does not have toggle 'send-inline-not-hole'"),
        ("v6.12 + send-utimes-cache", "v6.12 already has toggle 'send-utimes-cache'"),
        ("v6.12 - send-utimes-cache - send-utimes-cache", "does not have"),
    ],
)
def test_a_toggle_that_changes_nothing_is_warned_of(
    command_line, image: Path, behaviour: str, why: str
) -> None:
    with pytest.warns(bm.errors.BehaviourWarning, match=why):
        parsed = bm.Behaviour.parse(behaviour)
    assert parsed.text == behaviour
    for _ in range(2):
        status, (line,) = command_line(
            "send", image, "snap", "--behaviour", behaviour, "-f", os.devnull
        )
        assert status == 0
        assert line.startswith(f"btrfs-model: warning: behaviour '{behaviour}': ")
        assert why in line


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "behaviour", ["v6.12", "v6.12 - send-utimes-cache", "v6.2 + send-utimes-cache",
                  "v6.12 - send-utimes-cache + send-utimes-cache"]
)  # fmt: skip
def test_a_toggle_that_changes_something_is_not(behaviour: str) -> None:
    bm.Behaviour.parse(bm.Behaviour.parse(behaviour))


@pytest.mark.filterwarnings("error")
def test_no_workload_asks_for_what_changes_nothing() -> None:
    for name in NAMES:
        workload = load(name)
        for side in workload.sides(None, None):
            bm.Behaviour.parse(side.behaviour)
    from btrfs_model.experiments.workloads.send_utimes import AFTER, BEFORE, WORKLOAD

    for slug in WORKLOAD.toggles:
        bm.Behaviour.parse(f"{AFTER.behaviour} - {slug}")
        bm.Behaviour.parse(f"{BEFORE.behaviour} + {slug}")


# ------------------------------------------------------------------------------------ misspelt --


@pytest.mark.claim("A misspelt name is refused in one line with the nearest names.")
@pytest.mark.parametrize(
    ("ask", "kind", "near"),
    [
        (lambda: bm.Behaviour.parse("6.12"), ValueError, "v6.12"),
        (lambda: bm.Behaviour.parse("v6.12 - send-utime-cache"), ValueError, "send-utimes-cache"),
        (lambda: "send-utime-cache" in bm.Behaviour.parse("v6.12"), KeyError, "send-utimes-cache"),
        (lambda: Work()["btrfs_serach_slot"], KeyError, "btrfs_search_slot"),
        (lambda: Work().count("btrfs_serach_slot"), KeyError, "btrfs_search_slot"),
        (lambda: load("send-utime"), bm.BtrfsModelError, "send-utimes"),
        (lambda: bm.sample("kernel/send/send-truncat/n500"), bm.BtrfsModelError,
         "kernel/send/send-truncate/n500"),
        (lambda: device.load("deskstar"), bm.BtrfsModelError, "deskstar-7k500"),
        (lambda: device.load("deskstar-7k500", {"quedepth": 1}), bm.BtrfsModelError, "queue_depth"),
        (lambda: parse_step("s.json", 1, ["mkdri", "d"]), bm.BtrfsModelError, "mkdir"),
    ],
)  # fmt: skip
def test_a_misspelt_name_suggests_the_nearest(
    ask: Callable[[], object], kind: type[Exception], near: str
) -> None:
    with pytest.raises(kind) as caught:
        ask()
    text = str(caught.value)
    assert text.endswith(f"; did you mean '{near}'?")
    assert "\n" not in text
    assert isinstance(caught.value, bm.BtrfsModelError)


def test_what_is_like_nothing_suggests_nothing() -> None:
    with pytest.raises(bm.BtrfsModelError) as caught:
        bm.Behaviour.parse("v6.12 + zzzzzz")
    assert "did you mean" not in str(caught.value)
    assert "zzzzzz" not in Work() and Work().get("zzzzzz", 3) == 3


@pytest.mark.parametrize(
    ("arguments", "status", "near"),
    [
        (["snd"], 2, "send"),
        (["logical-resolv"], 2, "logical-resolve"),
        (["replay", "fiemap-share"], 1, "fiemap-shared"),
        (["reads", "IMAGE", "snap", "--device", "memry"], 1, "memory"),
        (["reads", "IMAGE", "snap", "--limits", "alwas_leaves=1"], 2, "always_leaves"),
        (["send", "IMAGE", "snap", "--behaviour", "6.12", "-f", os.devnull], 1, "v6.12"),
    ],
)
def test_the_command_line_suggests_the_nearest(
    command_line, image: Path, arguments: list[str], status: int, near: str
) -> None:
    ended, lines = command_line(*(str(image) if one == "IMAGE" else one for one in arguments))
    assert ended == status
    assert lines[-1].endswith(f"; did you mean '{near}'?")


# --------------------------------------------------------------------------------------- sizes --


@pytest.mark.parametrize(
    ("text", "size"), [("1G", 1 << 30), ("256m", 1 << 28), ("268435456", 1 << 28),
                       ("0x10000000", 1 << 28), (1 << 28, 1 << 28)]
)  # fmt: skip
def test_a_size_is_that_of_the_command_line(
    command_line, tmp_path: Path, text: str | int, size: int
) -> None:
    with bm.create(text, "16K") as fs:
        assert fs.image.superblock.total_bytes == size
        assert fs.nodesize == 16384
    (tmp_path / "s.json").write_text('{"ops": [["mkdir", "d"]]}')
    ended = command_line("run", tmp_path / "s.json", "-o", tmp_path / "i", "--size", text)
    assert ended == (0, [])
    assert (tmp_path / "i").stat().st_size == size


@pytest.mark.parametrize("text", ["", "G", "1X", "1.5G", "-1G", "8589934592G", "one"])
def test_a_wrong_size_is_one_line(command_line, tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="size") as caught:
        bm.create(text)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="size"):
        bm.create("1G", text)
    status, lines = command_line("run", tmp_path / "s.json", "-o", tmp_path / "i", f"--size={text}")
    assert status == 2
    assert str(caught.value) in lines[-1]


@pytest.mark.claim("A data sector that rotted is told in the words and bytes of the kernel's log.")
def test_words_of_a_data_checksum(tmp_path: Path) -> None:
    """crc32c of the sectors as btrfs check 6.2 prints them, bytes in the order on disk."""
    image = tmp_path / "image"
    with bm.create("128M") as fs:
        fs.create("f")
        fs.write("f", 0, b"a" * 4096)
        fs.snapshot("", "s")
        fs.sync()
        (extent,) = bm.fiemap(fs, "s", "f")["physical"].tolist()
        at = fs.image.map(extent)[0]
        fs.save(image)
    with image.open("r+b") as file:
        file.seek(at)
        file.write(b"Z")
    good = csum(0, b"a" * 4096).hex()
    bad = csum(0, b"Z" + b"a" * 4095).hex()
    said = f"csum 0x{bad} expected csum 0x{good}"
    with bm.open(image) as fs:
        with pytest.raises(OSError, match=said):
            fs.read_file("s", "f")
        for kernels in ("c", "python"):
            with bm.use_code(kernels), pytest.raises(OSError, match=said):
                bm.send(fs, "s")
