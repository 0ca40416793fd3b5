# SPDX-License-Identifier: GPL-2.0-only
"""What is compared: each kind of comparison, of a scenario or of an image that exists.

A comparison counts what it compared, by unit, and ends at the first difference.
"""

from __future__ import annotations

import random
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from btrfs_model.behaviour import Behaviour
from btrfs_model.experiments.scenario.load import Scenario, lines_of
from btrfs_model.experiments.verify.bench import Bench, first_that_differs
from btrfs_model.experiments.verify.data import compare_data, random_data
from btrfs_model.experiments.verify.events import compare_events
from btrfs_model.experiments.verify.full import compare_full, random_full
from btrfs_model.experiments.verify.listing import (
    model_listing,
    same_listings,
    snapshots_of,
    untimed,
)
from btrfs_model.experiments.verify.logs import (
    both_replayed,
    checksums_by_sector,
    comparable_logs,
    items_after_replays,
    same_ends_of_mounts,
    times_of,
    without_ranges,
)
from btrfs_model.experiments.verify.maps import comparable_maps
from btrfs_model.experiments.verify.pairs import compare_pairs, scenario_of_pairs
from btrfs_model.experiments.verify.quotas import compare_quotas, random_quotas
from btrfs_model.experiments.verify.random.logs import random_log, random_replay
from btrfs_model.experiments.verify.random.scenarios import random_scenario
from btrfs_model.experiments.verify.random.trees import random_tree
from btrfs_model.experiments.verify.sequences import compare_sequences, scenario_of_case
from btrfs_model.experiments.verify.sides import (
    COMPRESSED,
    NO_FILE_DATA,
    in_the_kernel,
    in_the_model,
    model_stream,
    references_to,
)
from btrfs_model.kernels.inside import asked, used
from btrfs_model.kernels.inside.listing import Listing
from btrfs_model.kernels.inside.timed import Sent
from btrfs_model.mount.inode import live_subvolume
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.questions.check import check
from btrfs_model.questions.fiemap.api import Fiemap
from btrfs_model.questions.reads.cold import blocks_after_mount
from btrfs_model.questions.send.ioctl import prepare, run
from btrfs_model.volume.filesystem import Filesystem

_BLOCK = 4096
_BEHIND = 1 << 30
"""Bytes from the last extent to where there is none."""
_FAR = 1 << 30
"""Bytes of a file that is sent without its data."""
_LARGE = 8 << 30
"""Bytes of a device that may have a million files."""
_SMALL = 256 << 20
"""Bytes of a device that the model has a copy of."""
_LAG = 60 * 10**9
"""The clock of a guest may lag so much."""


# ------------------------------------------------------------------------------------- images --


def plans(fs: Filesystem, choice: random.Random) -> list[Sent]:
    """Return what is sent of an image: each snapshot, each pair of neighbours, some others."""
    ids = [number for number in fs.subvolume_ids if fs.subvolume(number).is_read_only]
    paths = [fs.subvolume(number).path for number in ids]
    version_two = 2

    def plan(
        snapshot: str, parent: str | None, clones: Sequence[str], flags: int = 0, protocol: int = 1
    ) -> Sent:
        return Sent(snapshot=snapshot, parent=parent, clones=list(clones), flags=flags,
                    protocol=protocol)  # fmt: skip

    found = [plan(path, None, ()) for path in paths]
    for older, newer in pairwise(paths):
        found += [
            plan(newer, older, (older,)), plan(older, newer, (newer,)),
            plan(newer, older, (), NO_FILE_DATA),
            plan(newer, older, (older,), COMPRESSED, version_two),
        ]  # fmt: skip
    for one in [fs.subvolume(number) for number in fs.subvolume_ids][1 : 2 * bool(paths)]:
        if not one.is_read_only:  # these fail
            found += [plan(one.path, None, ()), plan(paths[-1], one.path, ()),
                      plan(paths[-1], None, (one.path,))]  # fmt: skip
    for _ in range(3 * (len(paths) > 1)):
        snapshot, parent = choice.sample(paths, 2)
        clones = choice.sample(paths, choice.randint(0, len(paths)))
        found.append(plan(snapshot, choice.choice([None, parent]), clones))
    return found


def _has_far_files(fs: Filesystem) -> bool:
    """Whether a file is so large that zeros for a hole in it would make a stream of gigabytes."""
    for number in fs.subvolume_ids:
        sizes = fs.listing(number, content=False)["size"]
        if len(sizes) and sizes.max() > _FAR:
            return True
    return False


def compare_sends(bench: Bench, image: Path, choice: random.Random) -> None:
    """Compare streams and errors of sends."""
    kernel = bench.kernel
    with Filesystem.open(image) as fs:
        wanted = plans(fs, choice)
        version_one = "send-stream-v2" not in Behaviour.parse(bench.behaviour)
        wanted = [one for one in wanted if not (version_one and one["protocol"] > 1)]
        if _has_far_files(fs):
            wanted = [{**one, "flags": one["flags"] | NO_FILE_DATA} for one in wanted]
        targets = [kernel.new_file() for _ in wanted]
        with bench.looked_at(image) as place:
            ended = kernel.call(asked.streams, place, wanted, list(map(str, targets)))
        for what, number, target in zip(wanted, ended, targets, strict=True):
            theirs = number, target.read_bytes()
            target.unlink()
            ours = model_stream(fs, what, bench.behaviour)
            bench.same("streams", f"send {dict(what)}", theirs, ours, how=(theirs[0], ours[0]))
            bench.compared["bytes"] += len(theirs[1])


def compare_reads(bench: Bench, image: Path, choice: random.Random) -> None:
    """Compare how many bytes of tree blocks a cold send reads."""
    behaviour = Behaviour.parse(bench.behaviour)
    with Filesystem.open(image) as fs:

        def read_only(name: str) -> bool:
            return fs.subvolume(name).is_read_only

        wanted = [one for one in plans(fs, choice) if all(map(read_only, _named(one)))]
        full = [one for one in wanted if one["parent"] is None]
        changes = [one for one in wanted if one["parent"] is not None]
        for what in [*full[:3], *choice.sample(changes, min(3, len(changes)))]:
            cold: Sent = {**what, "flags": NO_FILE_DATA, "protocol": 1}
            with bench.looked_at(image) as place:
                theirs = bench.kernel.call(asked.cold_reads, place, cold)
            request = prepare(fs, what["snapshot"], what["parent"], what["clones"],
                              behaviour=behaviour, no_file_data=True,
                              write=lambda data: None)  # fmt: skip
            opened = [fs.subvolume(name) for name in dict.fromkeys(_named(what))]
            known = blocks_after_mount(fs, opened, behaviour, writable=False)
            ours = len(run(request, known)[2]) * fs.image.nodesize
            bench.same("cold sends", f"bytes read for a send {dict(cold)}", theirs, ours)
            bench.compared["blocks read"] += ours // fs.image.nodesize


def _named(what: Sent) -> list[str]:
    """Return the subvolumes that a send is about: what is sent, clone sources, the parent."""
    parents = [] if what["parent"] is None else [what["parent"]]
    return [what["snapshot"], *what["clones"], *parents]


def compare_extents(bench: Bench, image: Path, choice: random.Random) -> None:
    """Compare FIEMAP of files, LOGICAL_INO of extents, paths of inodes."""
    with Filesystem.open(image) as fs:
        inodes = list(_inodes(fs))
        files = [row for row in inodes if stat.S_ISREG(row["mode"])]
        places = _places(fs, choice)
        with bench.looked_at(image) as place:
            shared = bench.kernel.call(
                asked.sharing, place, [row["path"] for row in files],
                [(row["below"], row["ino"]) for row in inodes], places,
            )  # fmt: skip
        for row, theirs in zip(files, shared["extents"], strict=True):
            found = Fiemap(fs, row["subvolume"], row["ino"], behaviour=bench.behaviour).run()
            ours = [list(one) for one in zip(*(found[name].tolist() for name in found.columns),
                                             strict=True)]  # fmt: skip
            bench.same("files", f"extents of {row['path']}", theirs, ours)
            bench.compared["extents"] += len(ours)
        for row, (names, missed) in zip(inodes, shared["paths"], strict=True):
            what = f"paths of inode {row['ino']} of {row['below']}"
            known = fs.subvolume(row["subvolume"]).paths_of(row["ino"])
            bench.same(
                "inodes", what, [len(names) + missed, *names], [len(known), *known[: len(names)]]
            )
        forest = fs.forest()
        for (logical, ignore), referring in zip(places, shared["references"], strict=True):
            model = references_to(forest, logical, ignore)
            bench.same("addresses", f"references to {logical} (all: {ignore})", referring, model)


def _inodes(fs: Filesystem) -> Iterator[dict[str, Any]]:
    """Yield the inodes of all subvolumes, with a path of each from the top."""
    for number in fs.subvolume_ids:
        subvolume = fs.subvolume(number)
        rows = fs.listing(number, content=False).drop_duplicates("ino")
        # a smaller number is where a subvolume was when the snapshot was made
        for row in rows[rows["ino"] >= subvolume.root_dir].to_dict("records"):
            path = f"{subvolume.path}/{row['path']}".lstrip("/")
            yield {"subvolume": number, "below": subvolume.path, "ino": int(row["ino"]),
                   "mode": row["mode"], "path": path}  # fmt: skip


def _places(fs: Filesystem, choice: random.Random, most: int = 400) -> list[tuple[int, bool]]:
    """Return addresses in extents and tree blocks: first block, middle, last; one behind all."""
    items = fs.tree(ObjectId.EXTENT_TREE).scan()
    data = np.flatnonzero(items["type"] == ItemType.EXTENT_ITEM)
    blocks = items["objectid"][items["type"] == ItemType.METADATA_ITEM].tolist()
    extents = [
        *zip(items["objectid"][data].tolist(), items["offset"][data].tolist(), strict=True),
        *(
            (start, fs.image.nodesize)
            for start in (*blocks[:2], int(items["objectid"][-1]) + _BEHIND)
        ),
    ]
    places = [
        (at, ignore)
        for start, length in extents
        for at in sorted({start, start + length // 2 // _BLOCK * _BLOCK, start + length - _BLOCK})
        for ignore in (False, True)
    ]
    return choice.sample(places, min(most, len(places)))


# ---------------------------------------------------------------------------------- scenarios --


def _of_image(compare: Callable[[Bench, Path, random.Random], None]) -> Compare:
    """Let a kernel make the image; after a crash it has what is open and has no name any more."""

    def of_scenario(bench: Bench, scenario: Scenario) -> None:
        with bench.new_image() as image, bench.new_image() as copy:
            crash = copy if scenario.steps[-1].name == "crash" else None
            in_the_kernel(bench.kernel, scenario, image, crash, _LARGE)
            compare(bench, crash or image, choice_of(scenario))

    return of_scenario


def choice_of(scenario: Scenario) -> random.Random:
    """Choose by mkfs and mount, which stay where a scenario is made short, written and read."""
    return random.Random("; ".join(map(repr, lines_of(scenario)[:2])))


def compare_maps(bench: Bench, scenario: Scenario) -> None:
    """Compare FIEMAP of files while a scenario is carried out, then all of what came of it."""
    with bench.new_image() as image:
        ran = in_the_kernel(bench.kernel, scenario, image)
        if ran.mapped:
            with (
                in_the_model(scenario, bench.behaviour) as (fs, ours),
                Filesystem.open(image) as its,
            ):
                bench.same_ends(scenario, ran.ended, ours.ended)
                theirs, mine = its.subvolumes()["path"], fs.subvolumes()["path"]
                bench.same("subvolumes", "subvolumes", theirs.tolist(), mine.tolist())
                roots = dict(zip(its.subvolume_ids, fs.subvolume_ids, strict=True))
            steps = zip(scenario.steps[2:], ran.ended, strict=False)  # the last may be a crash
            asked_for = [step for step, end in steps if step.name == "fiemap" and not end]
            for step, its_map, mapped in zip(asked_for, ran.mapped, ours.mapped, strict=True):
                what = f"map of a file that is being changed: {step.number} {step}"
                bench.same("maps", what, *comparable_maps(its_map, mapped, roots))
        compare_extents(bench, image, choice_of(scenario))


def compare_logs(bench: Bench, scenario: Scenario) -> None:
    """Compare what fsyncs come to and every item that they log."""
    with bench.new_image() as image, bench.new_image() as theirs, bench.new_image() as ours:
        wanted = in_the_kernel(bench.kernel, scenario, image, theirs)
        with in_the_model(scenario, bench.behaviour, ours) as (_, ran):
            pass
        if ran.synced != wanted.synced:  # the kernel's workers may come to extents after the log
            with in_the_model(scenario, bench.behaviour, ours, late_extents=True) as (_, late):
                ran = late if late.synced == wanted.synced else ran
        bench.same_ends(scenario, wanted.ended, ran.ended)
        bench.same("fsyncs", "what fsyncs come to", wanted.synced, ran.synced, len(ran.synced),
                   first_that_differs(wanted.synced, ran.synced))  # fmt: skip
        times = times_of(bench.behaviour)
        known, logs = (comparable_logs(one, scenario, times) for one in (theirs, ours))
        bench.same("logs", "subvolumes with a log", sorted(known), sorted(logs))
        for root in logs:
            its, mine = known[root], logs[root]
            if ran.by_chance and its != mine:
                its, deleted = without_ranges(theirs, root, its)
                mine, by_model = without_ranges(ours, root, mine)
                bench.same("ranges", f"names that the log of {root} deletes", deleted, by_model)
            bench.same_members("log items", f"log of {root}: ", its, mine)


def compare_replays(bench: Bench, scenario: Scenario) -> None:
    """Let a kernel log and replay, the model replay the same log; compare all items."""
    with bench.new_image() as image, bench.new_image() as crash:
        since = time.time_ns() - _LAG
        in_the_kernel(bench.kernel, scenario, image, crash, _SMALL)
        listed, ours = both_replayed(bench, crash)
        with nullcontext() if isinstance(ours, int | str) else ours:
            if isinstance(ours, int | str) or isinstance(listed, int | str):
                ends = (one if isinstance(one, int | str) else 0 for one in (listed, ours))
                same_ends_of_mounts(bench, *ends)
            else:
                _same_replay(bench, crash, listed, ours, since)


def _same_replay(
    bench: Bench, crash: Path, listed: Listing, ours: WritableFilesystem, since: int
) -> None:
    with Filesystem.open(crash) as theirs:
        same_listings(bench, listed, model_listing(theirs))
        its, mine = (fs.subvolumes()["path"].tolist() for fs in (theirs, ours))
        bench.same("subvolumes", "subvolumes", its, mine)
        for number in ours.subvolume_ids:  # the kernel looked into each: no orphan is left
            live_subvolume(ours, number)
        ours.sync()
        for number in theirs.subvolume_ids:
            before, after = items_after_replays(theirs, ours, number, since)
            bench.same_members("items", f"tree {number}: item ", before, after)
        bench.same("checksums", "checksums", checksums_by_sector(theirs), checksums_by_sector(ours))


def compare_images(bench: Bench, scenario: Scenario) -> None:
    """Let both sides carry out a scenario, and a kernel use the image that the model made."""
    kernel = bench.kernel
    with (
        bench.new_image() as image,
        bench.new_image() as made,
        in_the_model(scenario, bench.behaviour) as (fs, ran),
    ):
        fs.save(made)
        wanted = in_the_kernel(kernel, scenario, image)
        bench.same_ends(scenario, wanted.ended, ran.ended)
        with Filesystem.open(image) as theirs:
            same_listings(bench, untimed(model_listing(theirs)), untimed(model_listing(fs)))
        _use(bench, fs, made)


def _use(bench: Bench, fs: WritableFilesystem, image: Path) -> None:
    """Let a kernel use an image of the model as its owner would."""
    kernel = bench.kernel
    listing, snapshots = model_listing(fs), snapshots_of(fs)
    job = used.Job(image=str(image), options="rw,noatime", subvolumes=list(listing), write={},
                   snapshots=snapshots, send_data=True, scrub=True,
                   streams=str(kernel.folder))  # fmt: skip
    answer = kernel.call(used.answer_to, job, kernel.top)
    bench.same("uses", "a kernel uses the model's image", answer.get("failed", ""), "")
    alarms = [line for line in answer["messages"] if line[1] <= "4" and "deprecated" not in line]
    bench.same("messages", "what the kernel logs of the model's image", alarms, [])
    clean = "no errors found" in answer["scrub"]
    bench.same("scrubs", "scrub", answer["scrub"], answer["scrub"] if clean else "no errors found")
    same_listings(bench, answer["listing"], listing)
    for path, older in snapshots.items():
        _same_stream(bench, fs, path, None, answer["used"]["full"][path])
        if older:
            _same_stream(bench, fs, path, older, answer["used"]["incremental"][path])
    (kernel.folder / answer["used"]["new"]).unlink()
    with Filesystem.open(image) as after:
        bench.same("checks", "check after the kernel's use", [], check(after, verify_data=True))
    ran = subprocess.run(["btrfs", "check", str(image)], capture_output=True, text=True)
    bench.same("checks", f"btrfs check: {ran.stderr.strip()}", ran.returncode, 0)


def _same_stream(bench: Bench, fs: Filesystem, path: str, parent: str | None, stream: str) -> None:
    file = bench.kernel.folder / stream
    what = Sent(snapshot=path, parent=parent, clones=[parent] if parent else [], flags=0,
                protocol=1)  # fmt: skip
    ours = model_stream(fs, what, bench.behaviour)
    bench.same("streams", f"send of {path} after {parent}", (0, file.read_bytes()), ours)
    file.unlink()


# -------------------------------------------------------------------------------------- kinds --

Compare = Callable[[Bench, Scenario], None]


@dataclass(frozen=True)
class Kind:
    """A kind of comparison: how a scenario is made from a seed and a size, what is compared.

    `most`: files that a scenario may have.
    """

    make: Callable[[str, int], Scenario]
    compare: Compare
    of_image: Callable[[Bench, Path, random.Random], None] | None = None
    most: int = 1_000_000


def _image_scenario(seed: str, files: int) -> Scenario:
    # what is sent is received here: nobody wants zeros for holes of terabytes
    small = files < 100
    return random_scenario(seed, portable=True) if small else random_tree(seed, files, far=False)


KINDS: dict[str, Kind] = {
    "send": Kind(random_tree, _of_image(compare_sends), compare_sends),
    "log": Kind(lambda seed, files: random_log(seed), compare_logs),
    "replay": Kind(lambda seed, files: random_replay(seed), compare_replays),
    "fiemap": Kind(lambda seed, files: random_tree(seed, 0, sharing=True),
                   compare_maps, compare_extents),
    "data": Kind(lambda seed, files: random_data(seed), compare_data),
    "quotas": Kind(lambda seed, files: random_quotas(seed), compare_quotas),
    "reads": Kind(random_tree, _of_image(compare_reads), compare_reads),
    "full": Kind(lambda seed, files: random_full(seed), compare_full),
    "images": Kind(_image_scenario, compare_images, most=10_000),
}  # fmt: skip
"""Kinds that any kernel can be compared by, in the order in which they are told of."""

NAMED: dict[str, Kind] = {
    "sequences": Kind(lambda seed, files: scenario_of_case(seed), compare_sequences),
    "pairs": Kind(lambda seed, files: scenario_of_pairs(seed), compare_pairs),
    "trace": Kind(lambda seed, files: random_log(seed), compare_events),
}
"""Kinds that are compared where they are named. Of the first two a seed is the number of a part of
all there is; the last one needs a kernel with tracepoints."""
