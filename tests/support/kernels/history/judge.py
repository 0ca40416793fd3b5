# SPDX-License-Identifier: GPL-2.0-only
"""What the model says of an image, beside what a kernel and btrfs-progs say of it."""

import errno
import io
import random
import shutil
import stat
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

import calls
import corpus
import judges
import numpy as np
from mounts import one_at_a_time
from progs import btrfs_check, dumped, without_senseless_times

import btrfs_model as bm
from btrfs_model.backref.api import logical_ino
from btrfs_model.base.errors import UnsupportedError
from btrfs_model.behaviour import Behaviour
from btrfs_model.experiments.verify.listing import model_listing
from btrfs_model.experiments.verify.random.calls import random_call
from btrfs_model.kernels.inside.mounts import run
from btrfs_model.kernels.session import Kernel
from btrfs_model.mount.mount import START as CLOCK
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.patches import Patch
from btrfs_model.questions.dumptree.text import dump_tree_text
from btrfs_model.questions.fiemap.api import Fiemap
from btrfs_model.questions.send.ioctl import send
from history import wide
from history.answers import Questions, Send, answers, scrub
from history.making import copied, has_log

MOST_SENDS = 24 if corpus.LONG else 12 if corpus.MORE else 6
MOST_EXTENTS = 80 if corpus.LONG else 30 if corpus.MORE else 10
_BLOCK = 4096
_PARITY = "of the row with"
_MOUNT = "noatime,subvolid=5"
NEW, SIZE = "by the kernel", 9999
"""A file that the kernel makes where the model wrote."""


class Compared:
    """How many answers of each kind were compared, and those that differ."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.different: list[str] = []
        self.refused: list[str] = []

    def same(self, kind: str, where: object, ours: Any, theirs: Any) -> None:
        self.counts[kind] += 1
        if ours != theirs:
            self.different.append(f"{kind} {where}: {_first_difference(ours, theirs)}"[:600])

    def refuse(self, error: UnsupportedError) -> None:
        """Note what the model refuses, in one line."""
        self.counts["refused"] += 1
        self.same("lines of a refusal", "", str(error).count("\n"), 0)
        self.refused.append(str(error).partition(": ")[2])


def _first_difference(ours: Any, theirs: Any) -> str:
    if isinstance(ours, bytes) and isinstance(theirs, bytes):
        pairs = zip(ours.split(b"\n"), theirs.split(b"\n"), strict=False)
        line = next((pair for pair in pairs if pair[0] != pair[1]), (len(ours), len(theirs)))
        return f"{line[0]!r:.250} not {line[1]!r:.250}"
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in {*ours, *theirs}:
            if ours.get(key) != theirs.get(key):
                return f"{key!r}: {_first_difference(ours.get(key), theirs.get(key))}"
    return f"{ours!r:.250} not {theirs!r:.250}"


def sends(fs: bm.Filesystem, seed: str) -> list[Send]:
    """What to send: each snapshot, each as a change of each other, with clone sources and flags."""
    choice = random.Random(f"sends {seed}")
    snapshots = [number for number in fs.subvolume_ids if fs.subvolume(number).is_read_only]
    found: list[Send] = [(snapshot, 0, [], 0, 1) for snapshot in snapshots]
    found += [(one, other, [other], 0, 1) for one, other in permutations(snapshots, 2)]
    for one in snapshots:
        clones = choice.sample(snapshots, choice.randint(0, len(snapshots)))
        parent = choice.choice([0, *snapshots])
        found += [(one, parent, clones, 16, 2), (one, parent, clones, 1, 1),
                  (one, 0, clones, 0, 2)]  # fmt: skip
    return choice.sample(found, min(len(found), MOST_SENDS))


def extents(fs: bm.Filesystem, seed: str) -> list[int]:
    """Addresses of data: the first block of an extent, one in the middle and the last one."""
    items = fs.tree(ObjectId.EXTENT_TREE).scan()
    data = [
        (int(items["objectid"][row]), int(items["offset"][row]))
        for row in np.flatnonzero(items["type"] == ItemType.EXTENT_ITEM)
        if not fs.image.chunk_at(int(items["objectid"][row])).type & 4  # a tree block, not skinny
    ]  # fmt: skip
    some = random.Random(f"extents {seed}").sample(data, min(len(data), MOST_EXTENTS))
    return [start + at // _BLOCK * _BLOCK for start, length in some
            for at in sorted({0, length // 2, length - _BLOCK})]  # fmt: skip


def ours_sent(fs: bm.Filesystem, what: Send, preset: str) -> tuple[int, bytes]:
    """The errno of a send and the stream."""
    snapshot, parent, clones, flags, protocol = what
    try:
        made = send(fs, snapshot, parent or None, clones, behaviour=preset, proto=protocol,
                    no_file_data=bool(flags & 1), compressed=bool(flags & 16))  # fmt: skip
    except OSError as error:
        return error.errno or 0, getattr(error, "partial", b"") or b""
    assert made.data is not None
    return 0, made.data


def listing(fs: bm.Filesystem) -> dict[str, dict[str, dict[str, Any]]]:
    """A listing of all subvolumes, less the generation, which is not that of the version ioctl."""
    return model_listing(fs)


def compare(kernel: Kernel, image: Path, seed: str, compared: Compared) -> None:
    """Ask both about an image, which stays as it is."""
    streams = image.parent / "streams"
    streams.mkdir(exist_ok=True)
    with bm.open(image, degraded=image.is_dir()) as fs:
        paths = {str(number): fs.subvolume(number).path for number in fs.subvolume_ids}
        simple = fs.image.superblock.has_incompat("SIMPLE_QUOTA")
        asked = Questions(image=str(image), options="", subvolumes=paths, sends=sends(fs, seed),
                          logical=extents(fs, seed), streams=str(streams))  # fmt: skip
        if has_log(image) and (simple or image.is_dir()):  # a kernel then refuses all sends
            asked |= {"options": ",rescue=nologreplay", "sends": []}
        elif has_log(image):
            asked["image"] += ".without-log"
            copied(image, Path(asked["image"]))
            run("btrfs", "rescue", "zero-log", asked["image"])
        with judges.alone(kernel):
            said = kernel.call(answers, asked, kernel.top)
        compare_files(fs, said, kernel.preset, compared)
        for what, (number, stream) in zip(asked["sends"], said["sends"], strict=True):
            theirs = number, Path(stream).read_bytes()
            compared.same("send", what, ours_sent(fs, what, kernel.preset), theirs)
            Path(stream).unlink()
        forest = fs.forest()
        for logical, both in zip(asked["logical"], said["refs"], strict=True):
            for ignore, theirs in zip((False, True), both, strict=True):
                ours: Any
                try:
                    table = logical_ino(forest, logical, ignore_offset=ignore)
                    ours = table.to_numpy().tolist()
                except OSError as error:
                    ours = error.errno
                compared.same("LOGICAL_INO", (logical, ignore), ours, theirs)
        # kernels leave faults too, now and then: both see them
        found = found_in(fs)
        parity = any(chunk.profile.parity for chunk in fs.image.chunks)
        if parity:
            found = _after_scrub(kernel, image, found, compared)
        miscounted = is_miscounted(fs, found, kernel.preset)
        if not simple and not miscounted:
            compare_groups(fs, said["groups"], compared)
    if simple:  # which btrfs-progs 6.2 do not know
        compared.same("check", "", [] if miscounted else found, [])
    else:
        with _for_progs(image) as files:
            # 6.2 makes data anew from parity that it reads elsewhere
            theirs = btrfs_check(files[0], data=not parity)
        if not theirs:  # for btrfs check a warning
            found = _but_missing(found)
        compared.same("check", (found[:3], theirs), bool(found), bool(theirs))
        compare_dump(image, compared)


def found_in(fs: bm.Filesystem) -> list[str]:
    """What the model's check finds."""
    return [str(one) for one in bm.check(fs, verify_data=True)]


def _but_missing(found: list[str]) -> list[str]:
    """What is found in the devices that are there."""
    return [one for one in found if not (one.startswith("device ") and "is missing" in one)]


def _after_scrub(kernel: Kernel, image: Path, found: list[str], compared: Compared) -> list[str]:
    """What the model's check finds in a copy that a kernel went through, where there is parity.

    A device that takes the place of another one gets what is in use. Where something was freed
    there, the parity of the row still has it; btrfs check does not look, scrub makes it anew.
    """
    copy = image.with_name("scrubbed")
    shutil.copytree(image, copy)
    with judges.alone(kernel):
        errors = kernel.call(scrub, str(copy), kernel.top)
    with bm.open(copy, degraded=True) as fs:
        after = found_in(fs)
    shutil.rmtree(copy)
    stale = [one for one in found if _PARITY in one]
    compared.counts["stale parity"] += bool(stale)
    if errors is None:
        compared.counts["given up"] += 1
        return [one for one in found if one not in stale]
    ours = any("has another checksum" in one for one in found)
    compared.same("scrub", (found[:3], after[:3]), ours, errors)
    return after


def is_miscounted(fs: bm.Filesystem, found: list[str], preset: str) -> bool:
    """Whether quota groups alone are wrong, as kernels count them wrong.

    In mixed block groups data may come to where a tree block has been: who counts at the commit
    knows the address, and the size of what was there first (``btrfs_qgroup_trace_extent()``).
    With simple quotas who deletes a subvolume takes the key in a tree block's item that is not
    skinny for the block's owner (``btrfs_get_extent_owner_root()``). Before 6.9 a group that has a
    subvolume, and not its snapshot, goes on to count what both share as its own
    (``btrfs_qgroup_inherit()``).
    """
    wrong = [one for one in found if "QGROUP_INFO" in one]
    if not found or wrong != found:
        return False
    has = fs.image.superblock.has_incompat
    above = not any("quota group 0/" in one for one in wrong)
    return (has("MIXED_GROUPS") or (has("SIMPLE_QUOTA") and not has("SKINNY_METADATA"))
            or (above and Patch.QGROUP_QUICK_INHERIT not in Behaviour.parse(preset)))  # fmt: skip


@contextmanager
def _for_progs(image: Path) -> Iterator[list[Path]]:
    """What btrfs-progs are called with; they look for other devices themselves."""
    if image.is_file():
        yield [image]
        return
    with one_at_a_time(), wide.attached(image) as loops:
        yield [*map(Path, loops)]


def compare_files(fs: bm.Filesystem, said: dict[str, Any], preset: str, compared: Compared) -> None:
    """Subvolumes, listings, FIEMAP, paths of inodes, ``btrfs filesystem du``."""
    named = {int(line.split()[1]) for line in said["subvolumes"]}
    compared.same("subvolumes", "", {*fs.subvolume_ids} - {5}, named)
    listed = listing(fs)
    for number in fs.subvolume_ids:
        sub = fs.subvolume(number)
        path = sub.path
        compared.same("listing", path, listed[path], said["listing"][path])
        compared.counts["file"] += len(listed[path])
        for file, rows in said["fiemap"][path].items():
            found = Fiemap(fs, number, file, behaviour=preset).run()
            ours = [list(row) for row in zip(*(found[name].tolist() for name in found.columns),
                                             strict=True)]  # fmt: skip
            compared.same("FIEMAP", (path, file), ours, rows)
        for ino, (names, missed) in said["paths"][path].items():
            ours = sub.paths_of(int(ino))
            if missed:  # there is room for 4096 bytes
                ours = sorted(ours[: len(names) + missed], key=lambda name: name not in names)
                ours = ours[: len(ours) - missed]
            compared.same("INO_PATHS", (path, ino), ours, names)
        (row,) = bm.du(fs, number, nested=True).to_dict("records")
        ours = [row["total"], row["exclusive"], row["set_shared"]]
        compared.same("du", path, ours, said["du"][path])


def compare_groups(fs: bm.Filesystem, said: list[str], compared: Compared) -> None:
    """What quota groups count, where the kernel stands by it."""
    if any("inconsistent" in line or "rescan" in line or "ERROR" in line for line in said):
        return
    groups = {line.split()[0]: line.split()[1:3] for line in said if line.startswith("0/")}
    for row in bm.du(fs).to_dict("records") if groups else []:
        ours = [str(row["extent_bytes"] + row["tree_bytes"]),
                str(row["extent_exclusive"] + row["tree_exclusive"])]  # fmt: skip
        compared.same("quota group", row["id"], ours, groups.get(f"0/{row['id']}"))


def compare_dump(image: Path, compared: Compared) -> None:
    """``btrfs inspect-internal dump-tree``."""
    out = io.BytesIO()
    with bm.open(image, degraded=image.is_dir()) as fs:
        dump_tree_text(fs.image, out)
    theirs = dumped(*wide.files(image), "--noscan")
    ours, theirs = without_senseless_times(out.getvalue()), without_senseless_times(theirs)
    compared.same("dump-tree", "", ours, theirs)


# ----------------------------------------------------------------------------- the model writes --


def change(fs: WritableFilesystem, seed: str, count: int = 40) -> None:
    """Make random calls on a filesystem, of which some fail, and change what is in files."""
    choice = random.Random(f"change {seed}")
    mine = calls.ModelCalls(fs)
    files = [(row["path"], sub.path) for sub in map(fs.subvolume, fs.subvolume_ids)
             if not sub.is_read_only
             for row in fs.listing(sub.id, content=False).to_dict("records")
             if stat.S_ISREG(row["mode"])]  # fmt: skip
    files = [f"{top}/{path}".lstrip("/") for path, top in files]
    for _ in range(count):
        calls.run(mine, random_call(choice, subvolumes=True))
        if not files:
            continue
        one, other = choice.choice(files), choice.choice(files)
        at, length = choice.randrange(30) * _BLOCK, choice.choice([1, 2, 9]) * _BLOCK
        for call in choice.sample([
            ("write", one, at + choice.choice([0, 5]), choice.randbytes(length)),
            ("truncate", one, choice.randrange(99_999)), ("unlink", one),
            ("clone_range", one, other, at, choice.randrange(30) * _BLOCK, length),
            ("fallocate", one, at, length, True), ("punch_hole", one, at, length),
            ("fsync", one), ("link", one, f"{choice.choice('xyz')}{choice.randrange(99)}"),
            ("write", one, 0, b"compressible" * 9000),
        ], 2):  # fmt: skip
            calls.run(mine, call)


def compare_replay(kernel: Kernel, image: Path, compared: Compared) -> None:
    """Let both mount a crashed filesystem: what logs had, and what was deleted and open."""
    with bm.open(image) as fs:
        try:
            replayed = bm.replay_log(fs, behaviour=kernel.preset)
        except UnsupportedError as error:
            compared.refuse(error)
            return
    with replayed:
        ours = listing(replayed)
    mounted = image.with_suffix(".replayed")
    copied(image, mounted)
    began = time.time_ns()
    answer = judges.ask(kernel, mounted, options=_MOUNT, subvolumes=list(ours))
    mounted.unlink()
    if "No space left" in answer.failed:  # for a replay the kernel asks for more than it needs
        compared.counts["full"] += 1
        return
    compared.same("mount of a crash", "", answer.failed, "")
    if answer.listing:
        for path, files in ours.items():
            compared.same("listing after a crash", path, _but_replayed(files, CLOCK, CLOCK),
                          _but_replayed(answer.listing[path], began))  # fmt: skip


def _but_replayed(
    files: dict[str, dict[str, Any]], began: int, ended: int = 2**63
) -> dict[str, dict[str, Any]]:
    """A listing without the times of a replay, which takes names from files that have others."""
    return {name: {field: "of the replay" if field in ("mtime", "ctime") and
                   began <= value <= ended else value for field, value in record.items()}
            for name, record in files.items()}  # fmt: skip


def refused(fs: WritableFilesystem) -> int:
    """Write what the kernel will write; the errno where that is refused."""
    try:
        fs.create(NEW)
        fs.write(NEW, 0, b"x" * SIZE)
    except OSError as error:
        return error.errno or 0
    return 0


def go_on(kernel: Kernel, image: Path, copy: Path, seed: str, compared: Compared) -> bool:
    """Change a copy of an image with the model, if it can write it; a kernel goes on with that."""
    replay = kernel.preset if has_log(image) else None
    copied(image, copy)
    with bm.open(image) as before:
        if found_in(before):
            return False
    try:
        fs = WritableFilesystem.load(copy, seed=1, behaviour=kernel.preset, replay_behaviour=replay)
    except UnsupportedError as error:
        compared.refuse(error)
        return False
    with fs:
        change(fs, seed)
        fs.save(copy)
        wanted = listing(fs)
        found = found_in(fs)
        miscounted = is_miscounted(fs, found, kernel.preset)
        compared.same("check of what was written", "", [] if miscounted else found, [])
        simple = fs.image.superblock.has_incompat("SIMPLE_QUOTA")
        over_quota = refused(fs) == errno.EDQUOT
    if not simple:  # which btrfs-progs 6.2 do not know
        theirs = btrfs_check(copy)
        compared.same("btrfs check of what was written", theirs, bool(theirs), miscounted)
    answer = _used(kernel, copy, [*wanted])
    # where a crash ended a rescan, counts are too small and fall below zero: above each limit
    compared.same("over quota", "", "Disk quota exceeded" in answer.failed, over_quota)
    if over_quota:
        compared.counts["over quota"] += 1
        return False
    # a balance that goes on may abort there, or not: what is wrong is wrong each time
    for _ in range(_AGAIN):
        if not _is_full(answer):
            break
        copied(image, copy)
        with WritableFilesystem.load(
            copy, seed=1, behaviour=kernel.preset, replay_behaviour=replay
        ) as fs:
            change(fs, seed)
            fs.save(copy)
        answer = _used(kernel, copy, [*wanted])
    if _is_full(answer):
        copied(image, copy)
        if _is_full(_used(kernel, copy, [])):
            compared.counts["full"] += 1
            return False
    compared.same("mount of what was written", "", answer.failed, "")
    if answer.listing is None:
        return False
    # it warns when a key is no type of reference: see is_miscounted()
    alarms = [line for line in answer.alarms if not (simple and "inline ref type" in line)]
    compared.same("alarms of what was written", "", alarms, [])
    compared.same("scrub of what was written", "", "no errors found" in answer.scrub, True)
    for path, files in wanted.items():
        compared.same("listing of what was written", path, files, answer.listing[path])
        compared.counts["file that was written"] += len(files)
    return True


_AGAIN = 3
"""So often a kernel is asked again where its filesystem is full."""


def _is_full(answer: judges.Answer) -> bool:
    return any("No space left" in line for line in answer.alarms)


def _used(kernel: Kernel, image: Path, subvolumes: list[str]) -> judges.Answer:
    """Let a kernel write a file, and scrub."""
    return judges.ask(kernel, image, options=_MOUNT, subvolumes=subvolumes,
                      write={NEW: "x" * SIZE}, scrub=True)  # fmt: skip
