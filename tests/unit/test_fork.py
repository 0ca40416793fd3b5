# SPDX-License-Identifier: GPL-2.0-only
"""A process that is forked has copies of all filesystems, as of any other object."""

import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import progs
import pytest
from corpus import content

import btrfs_model as bm
from btrfs_model.mount.files.elided import Elided
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.volume.device.memory import Memory, Replacement

FORK = multiprocessing.get_context("fork")


def in_child(does: Callable[[], None]) -> None:
    """Do it in a process that is forked here, and see that it went well."""
    if not (child := os.fork()):
        try:
            does()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def assert_sound(fs: bm.WritableFilesystem, place: Path) -> None:
    """Save it; neither btrfs check nor the model finds anything."""
    fs.save(place)
    assert [str(one) for one in bm.check(place, verify_data=True)] == []
    assert [str(one) for one in bm.check(fs, verify_data=True)] == []
    assert progs.btrfs_check(place) == ""


def a_filesystem() -> bm.WritableFilesystem:
    """Files that are committed, logged, in the transaction, and with data that wait."""
    fs = bm.create("256M", seed=1)
    for number in range(300):
        fs.create(f"x{number}")
    fs.write("x0", 0, b"p" * 100_000)
    fs.commit()
    fs.create("open-transaction")
    fs.fsync("open-transaction")
    fs.write("x3", 0, b"w" * 50_000)
    return fs


def change(fs: bm.WritableFilesystem, letter: str) -> None:
    for number in range(0, 300, 2):
        fs.unlink(f"x{number}")
    for number in range(50):
        fs.create(f"{letter}{number}")
        fs.write(f"{letter}{number}", 0, letter.encode() * 5000)
    fs.write("x1", 0, letter.encode() * 100_000)
    fs.sync()


@pytest.mark.claim(
    "A filesystem in memory is copied where a process forks: neither sees what the other changes.",
    judge="progs",
)
@pytest.mark.parametrize("order", ["child first", "both at once", "twice"])
def test_neither_sees_what_the_other_changes(order: str, tmp_path: Path) -> None:
    with a_filesystem() as alone:
        change(alone, "p")
        alone.save(tmp_path / "alone")
    expected = content(tmp_path / "alone")
    with a_filesystem() as fs:

        def child() -> None:
            if order == "twice":
                in_child(lambda: change(fs, "g"))
            change(fs, "c")
            assert fs.read("x1") == b"c" * 100_000
            assert fs.read("x3") == b"w" * 50_000
            assert_sound(fs, tmp_path / "child")

        if order == "both at once":
            pid = os.fork()
            if not pid:
                try:
                    child()
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            change(fs, "p")
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        else:
            in_child(child)
            assert fs.read("x0") == b"p" * 100_000
            change(fs, "p")
        assert_sound(fs, tmp_path / "parent")
        crashed = fs.crash()
    assert content(tmp_path / "parent") == expected
    assert crashed == (tmp_path / "parent").read_bytes()
    with bm.open(tmp_path / "child") as saved:
        assert saved.read_file(5, "c7") == b"c" * 5000


def made(number: int) -> tuple[int, bytes]:
    """Change what the process that forked has."""
    name = f"worker{number}"
    SHARED[0].create(name)
    SHARED[0].write(name, 0, name.encode() * 1000)
    SHARED[0].sync()
    assert [str(one) for one in bm.check(SHARED[0], verify_data=True)] == []
    return len(SHARED[0].listing(5)), SHARED[0].read_file(5, name)


SHARED: list[bm.WritableFilesystem] = []


def test_workers_of_pools(tmp_path: Path) -> None:
    with a_filesystem() as fs:
        SHARED[:] = [fs]
        fs.sync()
        rows = len(fs.listing(5))
        with FORK.Pool(2) as pool, ProcessPoolExecutor(2, FORK) as executor:
            found = [*pool.map(made, range(6), chunksize=1), *executor.map(made, range(6))]
            change(fs, "p")
        assert all(rows < count <= rows + 12 for count, _ in found)
        assert [data for _, data in found] == [
            b"worker%d" % n * 1000 for n in (*range(6), *range(6))
        ]
        assert_sound(fs, tmp_path / "image")
        assert not any(name.startswith("worker") for name in fs.listing(5)["path"])


def test_images_that_were_opened(tmp_path: Path) -> None:
    """What is cached of them is each process's own."""
    with bm.open(bm.sample("kernel/send/send-truncate/n500")) as fs, bm.create("256M") as copy:
        stream = bm.send(fs, "snap").data

        def child() -> None:
            assert bm.send(fs, "snap").data == stream
            assert list(bm.check(fs)) == []
            bm.receive(copy, stream)
            assert_sound(copy, tmp_path / "child")
            fs.close()

        in_child(child)
        assert bm.send(fs, "snap").data == stream
        bm.receive(copy, stream)
        assert_sound(copy, tmp_path / "parent")


def test_data_that_are_not_stored(tmp_path: Path) -> None:
    """They become zeros also where something was stored before the fork."""
    with bm.create("256M", seed=2) as fs:
        fs.create("old")
        fs.write("old", 0, os.urandom(1 << 20) * 60)
        fs.sync()

        def child() -> None:
            fs.unlink("old")
            fs.sync()
            for number in range(10):
                fs.create(f"new{number}")
                fs.write(f"new{number}", 0, Elided(10 << 20))
            fs.sync()
            assert_sound(fs, tmp_path / "image")
            assert fs.read("new3") == bytes(10 << 20)

        in_child(child)
        child()


def test_a_file_that_is_to_be_replaced(tmp_path: Path) -> None:
    image = tmp_path / "image"
    with a_filesystem() as fs:
        fs.save(image)
    before = image.read_bytes()
    fs = WritableFilesystem.load_to_replace(image)
    if not isinstance(fs.memory, Replacement):
        pytest.skip("the filesystem of the tests has no files without names")

    def child() -> None:
        change(fs, "c")
        fs.save(tmp_path / "child")

    in_child(child)
    assert image.read_bytes() == before
    change(fs, "p")
    fs.replace()
    for place, name in ((image, "p7"), (tmp_path / "child", "c7")):
        assert list(bm.check(place, verify_data=True)) == []
        with bm.open(place) as saved:
            assert saved.read_file(5, name) == name[:1].encode() * 5000


def test_threads_that_are_at_work(tmp_path: Path) -> None:
    """A fork waits until no thread is in the middle of a change; then both go on."""
    with a_filesystem() as fs:
        stop = threading.Event()

        def work() -> None:
            number = 0
            while not stop.is_set():
                fs.create(f"t{number}")
                fs.write(f"t{number}", 0, b"t" * 5000)
                fs.sync()
                number += 1

        threads = [threading.Thread(target=work), threading.Thread(target=lambda: [
            bm.check(fs) for _ in iter(stop.is_set, True)])]  # fmt: skip
        for thread in threads:
            thread.start()
        try:
            for number in range(5):
                in_child(lambda number=number: assert_sound(fs, tmp_path / f"child{number}"))  # type: ignore[misc]
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert_sound(fs, tmp_path / "parent")


def test_a_thread_that_does_not_come_to_an_end(small_image: Path) -> None:
    """Where one holds a filesystem while the process forks, the copy is refused in one line."""
    with bm.open(small_image) as fs, bm.open(small_image) as other:
        busy, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            with fs.image.lease:
                busy.set()
                go_on.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        busy.wait()

        def child() -> None:
            assert len(other.subvolume_ids) == len(bm.open(small_image).subvolume_ids)
            for _ in range(2):
                with pytest.raises(bm.BtrfsModelError, match="a thread was using it when this"):
                    fs.listing(5)
            fs.close()

        in_child(child)
        go_on.set()
        thread.join()
        assert fs.subvolume_ids == other.subvolume_ids


def test_memory_that_cannot_be_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The copy is refused then, and nothing that is done to it reaches the other process."""
    with a_filesystem() as fs:
        monkeypatch.setattr(Memory, "freeze", lambda _: None)

        def child() -> None:
            for call in (fs.sync, lambda: fs.create("child"), lambda: fs.save(tmp_path / "child")):
                with pytest.raises(bm.BtrfsModelError, match="its memory cannot be copied"):
                    call()

        in_child(child)
        change(fs, "p")
        assert_sound(fs, tmp_path / "image")


def test_counts_and_locks_at_a_fork() -> None:
    """Threads that count while a process forks leave no lock behind in it."""
    code = """
        import os, threading
        from btrfs_model.base.counters import Work
        work, stop = Work(), threading.Event()
        def count():
            while not stop.is_set():
                work.count("send_cmd")
        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(50):
            if not (child := os.fork()):
                Work().count("send_cmd")
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=120)
