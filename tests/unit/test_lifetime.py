# SPDX-License-Identifier: GPL-2.0-only
"""How long things live, and who uses them: closed images, threads, files that change."""

import asyncio
import contextvars
import copy
import gc
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import corpus
import mounts
import pytest

import btrfs_model as bm
from btrfs_model.base.counters import Work, current
from btrfs_model.kernels.native import why_not
from btrfs_model.native.choice import select, use_python

BOTH = ("c", "python")
THREADS = 16


def make(path: Path, files: int = 60) -> Path:
    """An image with some files, and two snapshots."""
    with bm.create(1 << 28) as fs:
        for number in range(files):
            fs.create(f"f{number}", 0o644)
            fs.write(f"f{number}", 0, bytes([number % 256]) * 9000)
        fs.setxattr("f0", "user.a", b"value")
        fs.snapshot("", "s")
        fs.write("f1", 0, b"changed")
        fs.snapshot("", "t")
        fs.save(path)
    return path


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("lifetime") / "image")


# ---------------------------------------------------------------------------------- after close --

# what is called with a filesystem; whatever a call needs is made before the close
READERS = [
    "fs.subvolumes()", "fs.listing(5)", "fs.listing(5, content=False)", "fs.read_file(5, 'f1')",
    "fs.tree(5)", "fs.trees", "fs.roots", "fs.root_items", "fs.root_tree.first()",
    "fs.chunk_tree.first()", "fs.subvolume('s')",
    "fs.subvolume_path(5)", "fs.subvolume_ids", "fs.image.block(block)", "fs.image.view",
    "fs.image.verify_copy(block, 0)", "fs.image.data(block, 10)", "fs.image.start_cold()",
    "fs.image.buffer", "fs.checksums.read(block, 4096, fault=None)",
    "tree.get((256, 1, 0))", "tree.first()", "tree.last()", "list(tree.items())",
    "list(tree.items(reverse=True))", "tree.scan()", "tree.blocks()", "tree.frame()", "next(items)",
    "list(compare_trees(tree, tree))", "sub.inode('f1')", "sub.lookup(256, b'f1')",
    "sub.read_file('f1')", "sub.path_of(256 + 1)", "sub.resolve('f1')",
    "bm.send(fs, 's')", "bm.send(fs, 't', 's')", "bm.check(fs)", "bm.check(fs, verify_data=True)",
    "bm.du(fs)", "bm.extents(fs, 5, 'f1')", "bm.extent_references(fs, 5, 'f1')",
    "bm.fiemap(fs, 5, 'f1')", "mapped.run()", "bm.logical_ino(fs, extent)", "bm.reads(fs, 's')",
    "bm.tree_stats(fs)",
    "bm.replay_log(fs)", "fs.__enter__()", "fs.image.__enter__()",
]  # fmt: skip
WRITERS = [
    "fs.commit()", "fs.sync()", "fs.save('never')", "fs.save_crash('never')", "fs.crash()",
    "fs.create('n')", "fs.mkdir('n')", "fs.mknod('n', 0o10644)", "fs.symlink('f1', 'n')",
    "fs.link('f1', 'n')", "fs.unlink('f1')", "fs.rename('f1', 'n')", "fs.rmdir('n')",
    "fs.create_files('', ['n'])", "fs.move_files('', '', ['f1'])", "fs.unlink_files('', ['f1'])",
    "fs.write('f1', 0, b'x')", "fs.read('f1')", "fs.write_many('f1', [0], b'x' * 4096)",
    "fs.write_files('', ['n'], b'x')", "fs.truncate('f1', 1)", "fs.fallocate('f1', 0, 10)",
    "fs.punch_hole('f1', 0, 4096)", "fs.zero_range('f1', 0, 4096)", "fs.fsync('f1')",
    "fs.fdatasync('f1')", "fs.clone_range('f1', 0, 'f2', 0, 4096)", "fs.chmod('f1', 0o600)",
    "fs.chown('f1', 1, 1)", "fs.utimes('f1', 0, 0)", "fs.chattr('f1', 16)",
    "fs.setxattr('f1', 'user.n', b'x')", "fs.removexattr('f0', 'user.a')", "fs.resolve('f1')",
    "fs.hold('f1')", "fs.create_subvolume('n')", "fs.snapshot('', 'n')",
    "fs.delete_subvolume('s')", "fs.clean_subvolumes()", "fs.set_read_only('s', False)",
    "fs.remount()", "fs.set_mount_options('ssd')", "bm.receive(fs, stream)",
    "fs.writer.tree(5)", "fs.writer.tree_ids()", "fs.writer.run_refs()", "fs.writer.groups()",
    "fs.writer.insert(5, (999, 1, 0), b'x')", "fs.writer.write_blocks()",
]  # fmt: skip

AFTER_CLOSE = r"""
import sys
import btrfs_model as bm
from btrfs_model.volume.compare import compare_trees
from btrfs_model.questions.fiemap.api import Fiemap
path, opened, calls = sys.argv[1], sys.argv[2], sys.argv[3:]
fs = bm.open(path) if opened == "read" else bm.WritableFilesystem.load(path)
tree, sub = fs.tree(5), fs.subvolume(5)
items = tree.items()
next(items)
block, stream = tree.bytenr, bm.send(fs, "s").data
extent = int(bm.extents(fs, 5, "f1")["disk_bytenr"][0])
mapped = Fiemap(fs, 5, "f1")
held = next(tree.items()).data
fs.close()
fs.close()
bytes(held), repr(fs)
wrong = []
for call in calls:
    # an iterator goes on with the leaf it has
    for _ in range(100_000 if call.startswith("next(") else 1):
        try:
            eval(call)
        except Exception as error:
            if repr(error) != repr(ValueError(f"{path}: the image is closed")):
                wrong.append(f"{call}: {error!r}")
            break
    else:
        wrong.append(f"{call}: went on")
print("\n".join(wrong) or "all refused")
"""


@pytest.mark.claim("After close every call is refused in one line.")
@pytest.mark.parametrize("kernels", BOTH)
@pytest.mark.parametrize("opened", ["read", "write"])
def test_after_close(image: Path, opened: str, kernels: str, tmp_path: Path) -> None:
    """Whatever is called says that the image is closed; in a process of its own, as it may die."""
    calls = READERS if opened == "read" else READERS + WRITERS
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", AFTER_CLOSE, image, opened, *calls],
        env={**os.environ, "BTRFS_MODEL_KERNELS": kernels},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "all refused\n"), done.stderr[-2000:]


def test_closed_in_a_callback(image: Path) -> None:
    """The call goes on with what it has, and then everything is freed."""

    class Closing:
        def __init__(self) -> None:
            self.data = b""

        def write(self, data: bytes) -> int:
            fs.close()
            self.data += data
            return len(data)

    with bm.open(image) as whole:
        expected = bm.send(whole, "s").data
    fs, to = bm.open(image), Closing()
    bm.send(fs, "s", to=to)  # type: ignore[arg-type]
    assert to.data == expected
    with pytest.raises(ValueError, match="the image is closed"):
        fs.listing(5)


@pytest.mark.parametrize("round_", range(5))
def test_closed_by_another_thread(image: Path, round_: int) -> None:
    """Calls end as if nothing was, or are refused."""
    with bm.open(image) as fs:
        expected = bm.send(fs, "s").data
    fs, ends = bm.open(image), []

    def go() -> None:
        try:
            while True:
                assert bm.send(fs, "s").data == expected
        except ValueError as error:
            ends.append(str(error))

    threads = [threading.Thread(target=go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(round_):
        bm.send(fs, "s")
    fs.close()
    for thread in threads:
        thread.join()
    assert ends == [f"{image}: the image is closed"] * 4


def test_bytes_outlive_the_image(image: Path) -> None:
    fs = bm.open(image)
    items = list(fs.tree(5).items())
    before = [bytes(item.data) for item in items]
    fs.close()
    del fs
    gc.collect()
    assert [bytes(item.data) for item in items] == before


# -------------------------------------------------------------------------------------- counting --


def searches(fs: bm.Filesystem, times: int) -> None:
    tree = fs.tree(5)
    for _ in range(times):
        tree.first()


NAME = "btrfs_search_slot_for_read"


@pytest.mark.claim("Counts belong to their context.")
@pytest.mark.parametrize("kernels", BOTH)
def test_counts_belong_to_their_context(image: Path, kernels: Any) -> None:
    with select(kernels), bm.open(image) as fs:
        searches(fs, 1)
        with bm.counting() as outer:
            searches(fs, 2)
            with bm.counting() as inner:
                searches(fs, 3)
            searches(fs, 4)
            # a thread has a context of its own, a copy of this one is this one's
            apart = threading.Thread(target=searches, args=(fs, 100))
            apart.start()
            apart.join()
            copied = contextvars.copy_context()
            thread = threading.Thread(target=copied.run, args=(searches, fs, 5))
            thread.start()
            thread.join()
        assert (inner[NAME], outer[NAME]) == (3, 14)
        # a copy outlives the block: it counts in what surrounds that
        copied.run(searches, fs, 7)
        assert outer[NAME] == 14


def test_counts_of_tasks(image: Path) -> None:
    async def task(fs: bm.Filesystem, times: int) -> int:
        with bm.counting() as work:
            for _ in range(times):
                searches(fs, 1)
                await asyncio.sleep(0)
            await asyncio.to_thread(searches, fs, 10)
        return work[NAME]

    async def both(fs: bm.Filesystem) -> list[int]:
        return list(await asyncio.gather(*(task(fs, times) for times in range(1, 6))))

    with bm.open(image) as fs, bm.counting() as work:
        fs.tree(5)
        work.memory[:-1] = 0
        assert asyncio.run(both(fs)) == [11, 12, 13, 14, 15]
        assert work[NAME] == 65


def test_blocks_that_end_out_of_order(image: Path) -> None:
    def counted(fs: bm.Filesystem) -> Iterator[Work]:
        with bm.counting() as work:
            searches(fs, 1)
            yield work

    with bm.open(image) as fs, bm.counting() as outer:
        fs.tree(5)
        outer.memory[:-1] = 0
        generator = counted(fs)
        first = next(generator)
        with bm.counting() as inner:
            searches(fs, 2)
            assert next(generator, None) is None
            searches(fs, 4)
        assert current() is outer
        searches(fs, 8)
        assert (first[NAME], inner[NAME], outer[NAME]) == (7, 6, 15)


def test_no_count_is_lost(image: Path, tmp_path: Path) -> None:
    """Threads that share a context, on one filesystem and on many."""
    with ThreadPoolExecutor(THREADS) as pool, bm.counting() as work:
        many = [bm.open(image) for _ in range(THREADS)]
        for fs in many:
            fs.tree(5)
        work.memory[:-1] = 0
        context = contextvars.copy_context()
        jobs = [
            pool.submit(context.copy().run, searches, which, 200)
            for fs in many
            for which in (fs, many[0])
        ]
        for job in jobs:
            job.result()
        assert work[NAME] == 2 * THREADS * 200
        python = [pool.submit(context.copy().run, _count, work) for _ in range(THREADS)]
        for done in python:
            done.result()
        assert work["btrfs_fiemap"] == THREADS * 1000
        for fs in many:
            fs.close()


def _count(_: Work) -> None:
    for _round in range(1000):
        current().count("btrfs_fiemap")


# --------------------------------------------------------------------------------------- threads --


@pytest.mark.parametrize("shared", [True, False], ids=["one filesystem", "many"])
def test_sends_in_threads(image: Path, shared: bool) -> None:
    """16 threads, 100 sends each: every stream and every count is that of a send alone."""
    with bm.open(image) as fs:
        alone = [bm.send(fs, "s"), bm.send(fs, "t", "s")]
        wrong: list[str] = []

        def go() -> None:
            own = fs if shared else bm.open(image)
            for number in range(100):
                expected = alone[number % 2]
                with bm.counting() as outer:
                    found = bm.send(own, "s") if number % 2 == 0 else bm.send(own, "t", "s")
                if found.work != expected.work or found.data != expected.data:
                    wrong.append(f"send {number}: {found.work}")
                if outer[NAME] < found.work[NAME]:
                    wrong.append(f"send {number}: outside {outer}")

        threads = [threading.Thread(target=go) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


@pytest.mark.claim("Threads that share a filesystem count and send as one alone.")
@pytest.mark.parametrize("kernels", BOTH)
def test_different_calls_in_threads(image: Path, kernels: Any) -> None:
    """Cold caches, walks and searches of several threads on one filesystem, as alone."""
    calls: list[Callable[[bm.Filesystem], object]] = [
        lambda fs: bm.send(fs, "s").work,
        lambda fs: bm.reads(fs, "t", parent="s").to_dict("list"),
        lambda fs: bm.fiemap(fs, 5, "f1").to_dict("list"),
        lambda fs: fs.listing(5)["path"].tolist(),
        lambda fs: list(bm.check(fs)),
        lambda fs: bm.tree_stats(fs).to_dict("list"),
    ]
    with bm.open(image) as fs:

        def answer(number: int) -> str:
            with select(kernels):
                return repr(calls[number](fs))

        alone = [answer(number) for number in range(len(calls))]
        with ThreadPoolExecutor(6) as pool:
            order = [*range(len(calls))] * 3
            random.Random(1).shuffle(order)
            found = list(pool.map(answer, order))
        assert found == [alone[number] for number in order]


@pytest.mark.claim("What a thread chooses by bm.use_code() changes nothing in other threads.")
def test_a_choice_is_that_of_its_context() -> None:
    inside, seen = threading.Event(), threading.Event()

    def other() -> bool:
        with bm.use_code("python"):
            inside.set()
            seen.wait()
            return use_python()

    with bm.use_code("c"), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(other)
        inside.wait()
        assert not use_python()
        seen.set()
        assert answer.result()
        assert pool.submit(use_python).result() == (
            os.environ.get("BTRFS_MODEL_KERNELS") == "python"
        )
        with bm.use_code("python"):
            assert contextvars.copy_context().run(use_python) and use_python()
        assert not use_python()


def test_changes_in_threads(tmp_path: Path) -> None:
    """Calls that change a filesystem follow each other; what is saved is sound."""
    with bm.create(1 << 28) as fs:

        def go(number: int) -> None:
            fs.mkdir(f"d{number}")
            for file in range(40):
                fs.create(f"d{number}/f{file}")
                fs.write(f"d{number}/f{file}", 0, b"x" * 5000)
                if file % 10 == 0:
                    fs.fsync(f"d{number}/f{file}")
                    fs.listing(5, content=False)
            fs.commit()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(go, range(8)))
        fs.save(tmp_path / "image")
        assert len(fs.listing(5, content=False)) >= 8 * 41
    with bm.open(tmp_path / "image") as saved:
        assert list(bm.check(saved)) == []


# --------------------------------------------------------------------------------- pickle and copy


def test_results_pickle_and_copy(image: Path) -> None:
    with bm.open(image) as fs:
        sent = bm.send(fs, "s", explain=True)
        for result in (
            pickle.loads(pickle.dumps(sent)), copy.copy(sent), copy.deepcopy(sent),
        ):  # fmt: skip
            assert (result.data, result.commands, result.work) == (
                sent.data,
                sent.commands,
                sent.work,
            )
            assert result.causes.equals(sent.causes)
        again = copy.deepcopy(sent.work)
        again.count(NAME, 5)
        assert again[NAME] == sent.work[NAME] + 5
        behaviour = bm.Behaviour.parse("v6.12 - send-utimes-cache")
        for one in (pickle.loads(pickle.dumps(behaviour)), copy.deepcopy(behaviour)):
            assert (str(one), one.patches) == (str(behaviour), behaviour.patches)


def test_commands_and_items_pickle_and_copy(image: Path) -> None:
    with bm.open(image) as fs:
        commands = list(bm.read_stream(bm.send(fs, "s").data))
        assert {"write", "end"} <= {command.name for command in commands}
        items = list(fs.tree(5).items())
        for same in (
            pickle.loads(pickle.dumps([commands, items])),
            copy.deepcopy([commands, items]),
        ):
            assert same == [commands, items]
        assert len(pickle.dumps(commands[0])) < 1000


def test_filesystems_pickle_as_paths(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(image.parent)
    with bm.open(image.name) as fs:
        packed, expected = pickle.dumps(fs), bm.send(fs, "s").data
        copied = copy.deepcopy(fs)
        assert len(packed) < 1000
    monkeypatch.chdir("/")
    for other in (pickle.loads(packed), copy.copy(pickle.loads(packed)), copied):
        with other:
            assert bm.send(other, "s").data == expected
    with pytest.raises(ValueError, match="closed"):
        pickle.dumps(fs)
    subvolume = pickle.loads(pickle.dumps(pickle.loads(packed).subvolume("s")))
    assert subvolume.inode("f1").size == 9000
    with bm.create(1 << 28) as made:
        for call in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=r"<memory>: .* cannot be pickled or copied; save"):
                call(made)
        with pytest.raises(TypeError, match=r"<memory>: .* cannot be pickled or copied"):
            pickle.dumps(made.image)


# --------------------------------------------------------------------- files that change meanwhile


def run(body: str, *arguments: object) -> str:
    """Run Python in a process that may die, and say how it ended."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(body), *map(str, arguments)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.claim("A file may be cut off while it is open.")
@pytest.mark.parametrize("kernels", BOTH)
def test_truncated(tmp_path: Path, kernels: Any) -> None:
    """One line in place of SIGBUS, from what C reads and what Python does."""
    for what in ("bm.send(fs, 't')", "fs.listing(5)", "fs.read_file(5, 'f1')", "bm.check(fs)"):
        out = run(
            """
            import os, sys
            import btrfs_model as bm
            from btrfs_model.native.choice import select
            path, kernels, what = sys.argv[1:]
            with select(kernels), bm.open(path) as fs, bm.open(path) as used:
                bm.send(used, 's')
                os.truncate(path, 1 << 20)
                for fs in (fs, used, fs):
                    try:
                        eval(what)
                    except bm.errors.CorruptImageError as error:
                        print(error)
            """,
            make(tmp_path / "image"), kernels, what,
        )  # fmt: skip
        lines = out.splitlines()
        assert len(lines) == 3, what
        assert all("was cut off, or cannot be read, since it was opened" in line for line in lines)


@pytest.mark.claim("A file may be rewritten while it is open.")
@pytest.mark.parametrize("copied", [64 << 20, 0], ids=["copied", "shown"])
@pytest.mark.parametrize("kernels", BOTH)
def test_rewritten(tmp_path: Path, kernels: Any, copied: int) -> None:
    """A verified block that somebody else fills with rubbish: as it was, or one line."""
    out = run(
        """
        import os, sys
        import btrfs_model as bm
        import btrfs_model.volume.image
        from btrfs_model.native.choice import select
        path, kernels, copied = sys.argv[1:]
        btrfs_model.volume.image._COPIED = int(copied)
        with select(kernels), bm.open(path) as fs:
            expected = bm.send(fs, "s").data
            places = [fs.image.map(block.logical, copy)[0]
                      for tree in fs.trees.values() for block in tree.blocks() for copy in range(2)]
            os.utime(path, (0, 0))
            with open(path, "r+b") as file:
                for at in places:
                    file.seek(at + 96)
                    file.write(b"\\xff" * 16000)
            try:
                print(bm.send(fs, "s").data == expected)
            except bm.errors.CorruptImageError as error:
                print(error)
        """,
        make(tmp_path / "image"), kernels, copied,
    )  # fmt: skip
    assert out == "True\n" if copied else "since it was opened" in out


@pytest.mark.parametrize("kernels", BOTH)
def test_hammered(tmp_path: Path, kernels: Any) -> None:
    """Results or one-line errors while another thread writes rubbish all over the trees."""
    run(
        """
        import os, random, sys, threading, time
        import btrfs_model as bm
        from btrfs_model.native.choice import select
        path, kernels = sys.argv[1:]
        pristine = open(path, "rb").read()
        with bm.open(path) as fs:
            places = [fs.image.map(block.logical, copy)[0]
                      for tree in fs.trees.values() for block in tree.blocks() for copy in range(2)]
        stop = threading.Event()

        def hammer():
            choice = random.Random(1)
            with open(path, "r+b", buffering=0) as file:
                while not stop.is_set():
                    at = choice.choice(places)
                    junk = choice.randbytes(choice.choice((1, 8, 400)))
                    os.pwrite(file.fileno(), junk, at + choice.randrange(96, 2000))
                    if choice.random() < 0.5:
                        os.pwrite(file.fileno(), pristine[at : at + 16384], at)

        calls = [lambda fs: bm.send(fs, "s"), lambda fs: bm.send(fs, "t", "s"), bm.check,
                 lambda fs: fs.listing(5), bm.du, bm.tree_stats, lambda fs: fs.tree(5).scan(),
                 lambda fs: bm.fiemap(fs, 5, "f1"), lambda fs: fs.subvolumes()]
        thread = threading.Thread(target=hammer)
        thread.start()
        try:
            with select(kernels):
                for number in range(60 if kernels == "c" else 6):
                    try:
                        with bm.open(path) as fs:
                            for call in calls:
                                try:
                                    call(fs)
                                except (bm.BtrfsModelError, OSError) as error:
                                    assert "\\n" not in str(error), error
                    except (bm.BtrfsModelError, OSError) as error:
                        assert "\\n" not in str(error), error
        finally:
            stop.set()
            thread.join()
        """,
        make(tmp_path / "image"), kernels,
    )  # fmt: skip


def test_sigbus_of_others(image: Path) -> None:
    """What is not of an image goes to who handled it before."""
    body = """
        import mmap, sys, tempfile
        import btrfs_model as bm
        fs = bm.open(sys.argv[1])
        with tempfile.TemporaryFile() as file:
            file.truncate(8192)
            other = mmap.mmap(file.fileno(), 8192)
            file.truncate(0)
            other[0]
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(body), image], capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGBUS


def test_device_in_use(image: Path, tmp_path: Path) -> None:
    """A block device that is mounted is refused, unless it is asked for."""
    if why := why_not():
        pytest.skip(why)
    with mounts.mounted(image, "ro") as top:
        device = next(
            line.split()[0] for line in Path("/proc/mounts").read_text().splitlines()
            if line.split()[1] == str(top)
        )  # fmt: skip
        with pytest.raises(OSError, match="in use, perhaps mounted; bm") as error:
            bm.open(device)
        assert error.value.filename == device
        with bm.open(device, mounted=True) as fs, bm.open(image) as same:
            assert bm.send(fs, "s").data == bm.send(same, "s").data


def test_trees_pickle_as_their_filesystem() -> None:
    with bm.open(corpus.image("send/send-truncate/n500")) as fs:
        copy = pickle.loads(pickle.dumps(fs.tree(5)))
        assert [item.key for item in copy.items()] == [item.key for item in fs.tree(5).items()]
