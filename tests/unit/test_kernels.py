# SPDX-License-Identifier: GPL-2.0-only
"""Real kernels that are not there, die, hang or refuse: what is said, and what is left."""

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import called
import pytest
from killed import left_behind

from btrfs_model.base.errors import (
    BtrfsModelError,
    KernelFailedError,
    KernelHungError,
    KernelMissingError,
)
from btrfs_model.behaviour import preset_of
from btrfs_model.kernels import mconsole, native, timings, uml
from btrfs_model.kernels.choice import start
from btrfs_model.kernels.session import Kernel
from btrfs_model.kernels.uml import Uml


class Here(Kernel):
    """The agent as a process like any other, which may mount nothing."""

    def command(self) -> list[str]:
        return self.agent()

    @contextmanager
    def attached(self, image: Path, *, read_only: bool) -> Iterator[str]:
        yield str(image)


class Once(Here):
    """The same, not to be started again."""

    again = False


@pytest.fixture
def here() -> Iterator[Here]:
    with Here("here", limit=30) as kernel:
        yield kernel


# ------------------------------------------------------------------------------------ calls -----


def test_a_call_gives_what_it_returns(here: Here) -> None:
    data = bytes(range(256))
    assert here.call(called.doubled, data, times=3) == [data] * 3
    assert here.call(called.chatty) == here.call(called.chatty) != os.getpid()
    assert here.preset == preset_of(os.uname().release)
    assert sorted(os.listdir(here.folder)) == []  # noqa: PTH208


def test_a_call_that_fails_is_one_line_and_the_kernel_goes_on(here: Here) -> None:
    with pytest.raises(KernelFailedError) as error:
        here.call(called.failing, "some/path")
    assert str(error.value) == f"kernel {here.release}: [Errno 2] there is none: 'some/path'"
    assert "in failing" in error.value.__notes__[0]
    with pytest.raises(KernelFailedError, match="object does not go into a kernel or out of it"):
        here.call(called.odd)
    assert here.call(called.doubled, b"") == [b"", b""]


def test_a_kernel_that_dies_is_started_again(here: Here) -> None:
    before = here.call(called.chatty)
    with pytest.raises(KernelHungError, match=rf"^kernel {here.release} died; it said last: line"):
        here.call(called.dying)
    assert here.call(called.chatty) != before
    here.stop()
    assert here.call(called.chatty) != before


def test_a_kernel_that_hangs_is_killed() -> None:
    with Once("here", limit=30) as kernel:
        process = kernel.call(called.chatty)
        kernel.limit = 0.1
        with pytest.raises(KernelHungError, match=r"did not answer in 0.1 s"):
            kernel.call(called.sleeping, 60)
        assert not Path(f"/proc/{process}").exists()
        with pytest.raises(KernelHungError, match="hung before"):
            kernel.call(called.chatty)
    assert not kernel.folder.exists()
    assert not kernel.images.exists()


def test_nothing_is_left_of_who_was_killed() -> None:
    assert not left_behind("from test_kernels import Here", "Here('here')", Path(__file__).parent)


# --------------------------------------------------------------------------- what is missing -----


def test_native_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(KernelMissingError, match=r"^kernel native: mounting needs root$"):
        start("native")


@pytest.mark.parametrize(
    ("path", "there", "why"),
    [
        ("/proc/filesystems", "", r"the running kernel has no btrfs \(try: modprobe btrfs\)"),
        ("/dev/loop-control", None, r"there are no loop devices \(try: modprobe loop\)"),
    ],
)
def test_native_needs_btrfs_and_loop_devices(
    monkeypatch: pytest.MonkeyPatch, path: str, there: str | None, why: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    known = {"/proc/filesystems": "nodev proc\n\tbtrfs\n", "/dev/loop-control": ""} | {path: there}
    monkeypatch.setattr(Path, "read_text", lambda at: known[str(at)])
    monkeypatch.setattr(Path, "exists", lambda at: known[str(at)] is not None)
    with pytest.raises(KernelMissingError, match=f"^kernel native: {why}$"):
        native.Native()


def unpacked(folder: Path) -> Path:
    """What an unpacked package of a guest looks like; its binary is no program."""
    binary = folder / "usr/bin/linux.uml"
    binary.parent.mkdir(parents=True)
    binary.write_bytes(b"head /lib64/ld-linux-x86-64.so.2\0 tail\0")
    binary.chmod(0o755)
    return binary


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="guests are for x86_64")
def test_a_guest_that_is_not_there_is_named_with_its_package(tmp_path: Path) -> None:
    missing = tmp_path / "linux.uml"
    with pytest.raises(KernelMissingError) as error:
        start(str(missing))
    assert str(error.value) == (
        f"kernel {missing}: {missing} is not here (Debian: package user-mode-linux)"
    )
    assert isinstance(error.value, BtrfsModelError)
    binary = unpacked(tmp_path)
    Uml(binary).close()
    binary.chmod(0o644)
    assert uml.why_not(binary) == f"{binary} is not a program"


def test_guests_are_for_one_kind_of_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uml.platform, "machine", lambda: "aarch64")
    assert uml.why_not() == "User-Mode Linux is for x86_64, this is aarch64"


def test_a_processor_with_large_registers_needs_a_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(uml.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(uml, "_has_large_registers", lambda: True)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no cc to help it" in uml.why_not(unpacked(tmp_path))


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="guests are for x86_64")
def test_a_guest_newer_than_the_machine_has_a_libc_beside_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    binary, tools = unpacked(tmp_path / "package"), tmp_path / "tools"
    tools.mkdir()
    said = f"{binary}: /lib/libc.so.6: version `GLIBC_2.38' not found (required by {binary})"
    (tools / "ldd").write_text(f'#!/bin/sh\necho "{said}"\n'.replace("`", "\\`"))
    (tools / "ldd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    with pytest.raises(KernelMissingError, match=r"version `GLIBC_2.38' not found \(unpack its"):
        Uml(binary)
    libraries = binary.parents[1] / "lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    (libraries / "ld-linux-x86-64.so.2").write_text("")
    with Uml(binary) as guest:
        program = Path(guest.command()[0])
        assert program.read_bytes() == b"head ld.so".ljust(32, b"\0") + b"\0 tail\0"
        assert (guest.folder / "ld.so").resolve() == libraries / "ld-linux-x86-64.so.2"
        assert guest.environment()["LD_LIBRARY_PATH"] == str(libraries)


def test_timings_name_what_is_missing(
    here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.img"):
        timings.send(here, tmp_path / "nothing.img", "s")
    with pytest.raises(ValueError, match="runs must be at least 1"):
        timings.find(here, tmp_path, runs=0)
    monkeypatch.setattr("shutil.which", lambda name, path: None)
    with pytest.raises(KernelMissingError, match=r"^mkfs.btrfs is not here \(Debian: package btrf"):
        timings.steps(here, [("sync",)])
    with pytest.raises(KernelMissingError, match=r"^btrfs is not here"):
        timings.receive(here, tmp_path / "stream")


# ------------------------------------------------------------------------ the guest's console ----


def answering(path: Path, *replies: tuple[int, int, bytes]) -> threading.Thread:
    """A console that gives replies (failed, more, text) to the first request."""
    console = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    console.bind(str(path))

    def answer() -> None:
        with console:
            request, who = console.recvfrom(1024)
            _, _, length = struct.unpack_from("=IiI", request)
            assert request[12:][:length] == b"version"
            for failed, more, text in replies:
                console.sendto(struct.pack("=iii", failed, more, len(text)) + text, who)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def test_the_console_answers_in_pieces_or_refuses(tmp_path: Path) -> None:
    thread = answering(tmp_path / "a", (0, 1, b"Linux "), (0, 0, b"6.1\0"))
    assert mconsole.ask(tmp_path / "a", "version") == "Linux 6.1"
    thread.join()
    thread = answering(tmp_path / "b", (1, 0, b"no such device\n"))
    with pytest.raises(KernelFailedError, match=r"b: version: no such device$"):
        mconsole.ask(tmp_path / "b", "version")
    thread.join()
    with pytest.raises(KernelFailedError, match=r"c: version: \[Errno 2\]"):
        mconsole.ask(tmp_path / "c", "version")
    with pytest.raises(KernelFailedError, match=r"c: v+: longer than 511 bytes"):
        mconsole.ask(tmp_path / "c", "v" * 512)


@pytest.mark.claim("Bad input fails with a clear error.", judge="unit")
def test_kernel_that_is_closed_says_so() -> None:
    with Here("6.1") as kernel:
        assert not kernel.runs
    with pytest.raises(KernelFailedError, match=r"kernel 6\.1 is closed"):
        _ = kernel.preset
