# SPDX-License-Identifier: GPL-2.0-only
"""Sends beside those of real kernels: bytes, commands, counts, errors."""

import errno
import hashlib
import io
import os
import struct
import sys
from itertools import pairwise
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import corpus
import pytest
from damage import Broken, item_head
from hypothesis import given, settings
from hypothesis import strategies as st

from btrfs_model.base.errors import BtrfsModelError, SubvolumeNotFoundError
from btrfs_model.behaviour import PRESETS, Behaviour
from btrfs_model.native.choice import select
from btrfs_model.patches import Patch
from btrfs_model.questions.send.ioctl import SendResult, send
from btrfs_model.stream.reader import read_stream
from btrfs_model.volume.filesystem import Filesystem

KERNELS = {
    "5.10": "v5.10.46",
    "6.1": "v6.1.176",
    "6.12": "v6.12.101",
    "6.18": "v6.18.44",
    "7.2": "v7.2.7",
}
CASES = [
    name
    for name in (*corpus.cases("send"), *corpus.cases("balance"))
    if corpus.has(name, "image.zst") and "sends" in corpus.case(name)
]
# what the compiler inlined into send.c of these kernels, so that a part of the calls was not seen
INLINED = {("5.10", "btrfs_next_old_item"), ("6.1", "btrfs_next_old_item")}


def full_sends(name: str) -> list[tuple[dict[str, Any], str, dict[str, Any]]]:
    return [row for row in corpus.records(name) if row[0].get("parent") is None]


def run(fs: Filesystem, ask: dict[str, Any], kernel: str) -> SendResult:
    flags = ask["flags"]
    return send(
        fs,
        ask["snap"],
        ask["parent"],
        ask["clones"],
        behaviour=KERNELS.get(kernel, kernel),
        proto=ask["proto"] or 1,
        no_file_data=bool(flags & 1),
        omit_header=bool(flags & 2),
        omit_end=bool(flags & 4),
        compressed=bool(flags & 16),
    )


@pytest.mark.claim(
    "Sends, full and incremental, are byte-identical to those of five kernels, for 40 random "
    "filesystems and the workloads."
)
@pytest.mark.parametrize("name", CASES)
def test_streams_are_the_kernels(name: str) -> None:
    with Filesystem.open(corpus.image(name)) as fs:
        for ask, kernel, record in corpus.records(name):
            where = f"{name} {ask.get('id', '')} {kernel}"
            if "errno" in record:
                with pytest.raises(OSError) as failure:
                    run(fs, ask, kernel)
                assert errno.errorcode[failure.value.errno or 0] == record["errno"], where
                # what was sent before the failure is whole commands
                if partial := getattr(failure.value, "partial", b""):
                    list(read_stream(partial))
                continue
            result = run(fs, ask, kernel)
            assert result.size == record["bytes"], where
            assert hashlib.sha256(result.data or b"").hexdigest() == record["sha256"], where
            wanted = {command.lower(): count for command, count in record["commands"].items()}
            assert result.commands == wanted, where


SMALL = [*(f"send/random/seed-{seed:03}" for seed in (1, 3)), "balance/relocation"]
LARGER = [f"send/random/seed-{seed:03}" for seed in (7, 11)] if corpus.LONG else []


@pytest.mark.one_of(2)
@pytest.mark.claim("C and Python send the same bytes with the same counted work.", judge="twins")
@pytest.mark.parametrize("kernel", ["5.10", "6.1", "6.18"])
@pytest.mark.parametrize("name", [name for name in (*SMALL, *LARGER) if name in CASES])
def test_python_twin_is_equal(name: str, kernel: str) -> None:
    with Filesystem.open(corpus.image(name)) as fs:
        for ask, recorded, record in corpus.records(name):
            if "errno" in record or recorded != kernel:
                continue
            native = run(fs, ask, kernel)
            with select("python"):
                twin = run(fs, ask, kernel)
            assert twin.data == native.data
            assert twin.commands == native.commands
            assert dict(twin.work) == dict(native.work)


def test_there_are_cases_of_every_kind() -> None:
    asks = [row[0] for name in CASES for row in full_sends(name)]
    assert any(ask["clones"] for ask in asks)
    assert {ask["proto"] for ask in asks} >= {None, 2}
    assert {ask["flags"] for ask in asks} >= {0, 1, 16}
    assert any(name in CASES for name in SMALL)


# ------------------------------------------------------------------------------- counts ----


def read_only(fs: Filesystem) -> list[int]:
    return [i for i in fs.subvolume_ids if fs.subvolume(i).is_read_only]


COUNTED = [name for w in "024" for name in corpus.cases(f"counts/W{w}")]


@pytest.mark.claim(
    "The counted work of a send equals probes in three kernels, function by function."
)
@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("kernel", ["5.10", "6.1", "6.12"])
def test_counts_are_the_kernels(name: str, kernel: str) -> None:
    if not corpus.has(name, "image.zst") or kernel not in corpus.case(name)["kernels"]:
        pytest.skip("this was not recorded with an image")
    record = corpus.case(name)["kernels"][kernel]
    measured: dict[str, int] = {}
    for symbol, count in record["counts"].items():
        # gcc's suffixes; the parts of a split function add up
        function = symbol.partition(".")[0]
        measured[function] = measured.get(function, 0) + count
    with Filesystem.open(corpus.image(name)) as fs:
        first, *rest = read_only(fs)
        # W0 is the difference of the second snapshot to the first
        ask = (rest[0], first, [first]) if "/W0/" in name else (first,)
        result = send(fs, *ask, behaviour=KERNELS[kernel])
    assert hashlib.sha256(result.data or b"").hexdigest() == record["stream"]["sha256"]
    compared = [
        function
        for function in result.work
        if function in measured and (kernel, function) not in INLINED
    ]
    # few functions were probed in the largest case
    assert len(compared) >= (17 if name.endswith("N20000") else 25)
    assert {f: result.work[f] for f in compared} == {f: measured[f] for f in compared}


def test_counts_of_the_tables_are_compared() -> None:
    name = corpus.cases("counts/W2")[0]
    wanted = {
        "btrfs_search_slot", "btrfs_next_old_leaf", "btrfs_search_old_slot", "find_parent_nodes",
        "get_cur_path", "send_cmd", "extent_from_logical", "iterate_extent_inodes",
        "btrfs_find_all_leafs", "btrfs_find_all_roots_safe", "submit_bio",
    }  # fmt: skip
    with Filesystem.open(corpus.image(name)) as fs:
        assert wanted <= set(send(fs, read_only(fs)[0], behaviour="v6.1.176").work)


# ------------------------------------------------------------------------------ toggles ----


@pytest.fixture(scope="module")
def mixed() -> Any:
    with Filesystem.open(corpus.image(SMALL[1])) as fs:
        yield fs, [ask for ask, kernel, _ in corpus.records(SMALL[1]) if kernel == "6.18"]


SEND_TOGGLES = list(Patch)


@pytest.mark.claim("C and Python send the same with any set of toggles.", judge="twins")
@settings(max_examples=25, deadline=None)
@given(
    preset=st.sampled_from(PRESETS),
    off=st.sets(st.sampled_from(SEND_TOGGLES), max_size=4),
    on=st.sets(st.sampled_from(SEND_TOGGLES), max_size=4),
    which=st.integers(0, 99),
)
def test_any_set_of_toggles(
    mixed: Any, preset: str, off: set[str], on: set[str], which: int
) -> None:
    """C and Python agree for kernels that never were, and the stream is well formed."""
    fs, asks = mixed
    ask = asks[which % len(asks)]
    text = preset + "".join(f" - {t}" for t in sorted(off)) + "".join(f" + {t}" for t in sorted(on))
    arguments = (ask["snap"], ask["parent"], ask["clones"])
    native = send(fs, *arguments, behaviour=text)
    with select("python"):
        twin = send(fs, *arguments, behaviour=text)
    assert (twin.data, dict(twin.work)) == (native.data, dict(native.work))
    names = [command.name for command in read_stream(native.data)]
    assert {name: names.count(name) for name in set(names)} == native.commands


def test_skip_truncate_drops_the_truncates_and_nothing_else() -> None:
    with Filesystem.open(corpus.image("send/send-truncate/n500")) as fs:
        before, after = (send(fs, "snap", behaviour=kernel) for kernel in ("v4.16", "v4.17"))
    assert "truncate" not in after.commands
    assert before.commands.pop("truncate") == 500
    assert before.commands == after.commands

    def without_truncates(result: SendResult) -> list[Any]:
        return [(c.name, c.attributes) for c in read_stream(result.data) if c.name != "truncate"]

    assert without_truncates(before) == without_truncates(after)


def test_utimes_cache_keeps_every_other_command_in_place() -> None:
    with Filesystem.open(corpus.image(SMALL[2])) as fs:
        ask = next(ask for ask, _, _ in full_sends(SMALL[2]))
        on = send(fs, ask["snap"], behaviour="v6.12")
        off = send(fs, ask["snap"], behaviour="v6.12 - send-utimes-cache")
    assert on.commands["utimes"] < off.commands["utimes"]
    streams = [[c for c in read_stream(r.data) if c.name != "utimes"] for r in (on, off)]
    assert [(c.name, c.attributes) for c in streams[0]] == [
        (c.name, c.attributes) for c in streams[1]
    ]


# ------------------------------------------------------------------------------- errors ----


@pytest.fixture(scope="module")
def small() -> Any:
    with Filesystem.open(corpus.image("send/send-truncate/n500")) as fs:
        yield fs


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        ({"snapshot": 5}, errno.EPERM),
        ({"snapshot": "snap", "clone_sources": [5]}, errno.EPERM),
        ({"snapshot": "snap", "proto": 2, "behaviour": "v5.10.46"}, errno.EINVAL),
        ({"snapshot": "snap", "compressed": True, "behaviour": "v5.10.46"}, errno.EINVAL),
        ({"snapshot": "snap", "compressed": True}, errno.EINVAL),
        ({"snapshot": "snap", "proto": 3}, errno.EPROTO),
        ({"snapshot": "snap", "proto": -1}, errno.EPROTO),
        ({"snapshot": "nowhere"}, errno.ENOENT),
        ({"snapshot": 4711}, errno.ENOENT),
        ({"snapshot": "snap", "clone_sources": ["nowhere"]}, errno.ENOENT),
        ({"snapshot": "snap", "parent": 5}, errno.EPERM),
        ({"snapshot": "snap", "parent": "nowhere"}, errno.ENOENT),
    ],
)
def test_refused(small: Filesystem, arguments: dict[str, Any], number: int) -> None:
    with pytest.raises(OSError) as failure:
        send(small, **arguments)
    if number == errno.ENOENT:
        assert isinstance(failure.value, SubvolumeNotFoundError)
    else:
        assert failure.value.errno == number
    assert "n500" in str(failure.value).replace("/", "-")


def test_highest_version_and_a_kernel_for_debugging(small: Filesystem) -> None:
    assert (send(small, "snap", proto=0).data or b"")[13:17] == b"\2\0\0\0"
    third = send(small, "snap", proto=0, behaviour="v6.18 + send-verity")
    assert (third.data or b"")[13:17] == b"\3\0\0\0"


def test_stream_goes_to_a_file(small: Filesystem) -> None:
    file = io.BytesIO()
    result = send(small, "snap", to=file)
    assert result.data is None
    assert file.getvalue() == send(small, "snap").data
    assert result.size == len(file.getvalue())


def test_pieces_of_the_stream_may_be_kept_and_are_written_whole(tmp_path: Path) -> None:
    """Those of C are there during a call only; a raw file may take a part of one."""
    pieces: list[bytes] = []
    with Filesystem.open(corpus.image("send/send-truncate/n500")) as fs:
        whole = send(fs, "snap").data
        assert whole is not None
        assert len(whole) > 1 << 20
        send(fs, "snap", to=SimpleNamespace(write=pieces.append))  # type: ignore[arg-type]
        assert len(pieces) > 1
        assert b"".join(pieces) == whole
        for buffering in (0, -1):
            with (tmp_path / "stream").open("wb", buffering) as file:
                send(fs, "snap", to=file)  # type: ignore[arg-type]
            assert (tmp_path / "stream").read_bytes() == whole
        out, into = os.pipe()
        os.set_blocking(into, False)
        with os.fdopen(into, "wb", 0) as pipe, pytest.raises(BlockingIOError):
            send(fs, "snap", to=pipe)  # type: ignore[arg-type]
        os.set_blocking(out, False)
        assert whole.startswith(got := os.read(out, 1 << 20))
        assert got
        os.close(out)


@pytest.mark.parametrize("kernels", ["c", "python"])
def test_failing_file_ends_the_send(small: Filesystem, kernels: Any) -> None:
    class Full(io.RawIOBase):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "full")

    with select(kernels), pytest.raises(OSError, match="full"):
        send(small, "snap", to=Full())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("callback", "name"),
    [("bm_python_write", "send/send-truncate/n500"), ("bm_python_decompress", "features/zlib")],
)
def test_a_signal_before_the_first_statement_of_a_callback(callback: str, name: str) -> None:
    """Python runs a handler there when the signal came while C was at work."""

    class StopError(Exception):
        """What the handler raises here."""

    def handle(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == callback:
            raise StopError

    with Filesystem.open(corpus.image(name)) as fs:
        sys.setprofile(handle)
        try:
            with pytest.raises(StopError):
                send(fs, "snap")
        finally:
            sys.setprofile(None)


def test_bad_data_is_eio_and_leaves_the_stream_so_far(tmp_path: Any) -> None:
    image = corpus.scratch_copy("send/send-truncate/n500", tmp_path / "bad.img")
    with Filesystem.open(image) as fs:
        whole = send(fs, "snap").data or b""
        victim = next(c for c in read_stream(whole) if c.name == "write" and c.offset > 500_000)
        extent = fs.subvolume("snap").extents(victim["path"])[0]
        physical, _ = fs.image.map(extent.disk_bytenr)
    with image.open("r+b") as file:
        file.seek(physical)
        file.write(b"\0")
    for kernels in ("c", "python"):
        with (
            Filesystem.open(image) as fs,
            select(kernels),  # type: ignore[arg-type]
            pytest.raises(OSError, match="bad data checksum") as failure,
        ):
            send(fs, "snap")
        assert failure.value.errno == errno.EIO
        assert failure.value.partial == whole[: victim.offset]  # type: ignore[attr-defined]


def test_behaviours() -> None:
    assert Behaviour.parse("v6.12") == Behaviour.parse("v6.12 - send-reada + send-reada")
    assert "send-utimes-cache" not in Behaviour.parse("v6.12 - send-utimes-cache")
    for text, message in [
        ("v9", "unknown kernel 'v9'"),
        ("v6.12 - nothing", "unknown toggle 'nothing'"),
    ]:
        with pytest.raises(BtrfsModelError, match=message):
            Behaviour.parse(text)


# ------------------------------------------------------------------------------- verity ----


def test_verity_descriptor_is_sent(tmp_path: Any) -> None:
    """No kernel here writes descriptors, so two xattr items of an inode are made into one."""
    broken = Broken(corpus.image("send/random/seed-011"))
    fs = broken.fs()
    found = None
    for which in (i for i in fs.subvolume_ids if fs.subvolume(i).is_read_only):
        items = list(fs.tree(which).items())
        for first, second in pairwise(items):
            if first.key[:2] == second.key[:2] and first.key.type == 24 and len(second.data) > 256:
                found = which, first, second
    assert found is not None
    snapshot, first, second = found
    signature, salt = b"signature", b"salt"
    descriptor = struct.pack("<BBBBIQ64s32s144x", 1, 2, 12, len(salt), len(signature), 0, b"", salt)
    broken.write_item(second, 0, (descriptor + signature).ljust(len(second.data), b"\0"))
    for item, offset in ((first, 0), (second, 1)):
        key = struct.pack("<QBQ", item.key.objectid, 36, offset)
        broken.write(item.block, item_head(item.slot), key)
    results = []
    for kernels in ("c", "python"):
        with select(kernels):  # type: ignore[arg-type]
            results.append(send(broken.fs(), snapshot, behaviour="v6.18 + send-verity", proto=3))
            older = send(broken.fs(), snapshot, proto=2)
    assert results[0].data == results[1].data
    sent = list(read_stream(results[0].data))
    # behind the chmod of the same file
    path = next(before["path"] for before, c in pairwise(sent) if c.name == "enable_verity")
    commands = [c for c in sent if c.name == "enable_verity"]
    assert bytes(path).endswith(fs.subvolume(snapshot).names(first.key.objectid)[0].name)
    assert [c.attributes for c in commands] == [
        {
            "path": path,
            "verity_algorithm": 2,
            "verity_block_size": 4096,
            "verity_salt_data": salt,
            "verity_sig_data": signature,
        }
    ]
    assert "enable_verity" not in older.commands
