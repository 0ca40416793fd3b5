# SPDX-License-Identifier: GPL-2.0-only
"""What a kernel answers to a scenario, in a form that is the same in another run of it.

Each kernel carries the scenario out. And each is asked of one image, which one of them made: for
streams have ids and times in them.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.verify.bench import Bench
from btrfs_model.experiments.verify.causes import differing
from btrfs_model.experiments.verify.data import stored_files
from btrfs_model.experiments.verify.kinds import plans
from btrfs_model.experiments.verify.listing import model_listing, untimed
from btrfs_model.experiments.verify.logs import TIMES, both_replayed, comparable_logs
from btrfs_model.experiments.verify.maps import joined
from btrfs_model.experiments.verify.sides import Ran, in_the_kernel, in_the_model
from btrfs_model.kernels.inside import asked
from btrfs_model.kernels.session import Kernel
from btrfs_model.volume.filesystem import Filesystem

Answer = dict[str, Any]
"""By what is asked."""
_OF_LOGS = TIMES[:3]
"""Kernels before log-otime leave the last one as memory had it."""


def done(kernel: Kernel, scenario: Scenario, kept: Path | None = None) -> Answer:
    """Let a kernel carry a scenario out: how calls end, what fsyncs log, what is on disk.

    `kept` becomes the image, as it is after a crash where the scenario ends with one.
    """
    bench = Bench(kernel)
    crashes = scenario.steps[-1].name == "crash"
    with bench.new_image() as image, bench.new_image() as crash:
        ran = in_the_kernel(kernel, scenario, image, crash if crashes else None)
        found = _of_run(ran)
        if crashes:
            found["log items"] = comparable_logs(crash, scenario, _OF_LOGS)
        else:
            with Filesystem.open(image) as fs:
                found |= _of_disk(fs)
        if kept is not None:
            shutil.copyfile(crash if crashes else image, kept)
    return found


def modelled(scenario: Scenario, behaviour: str, folder: Path) -> Answer:
    """Let the model carry a scenario out as :func:`done` lets a kernel."""
    crash = folder / "crash" if scenario.steps[-1].name == "crash" else None
    with in_the_model(scenario, behaviour, crash) as (fs, ran):
        found = _of_run(ran) | ({} if crash else _of_disk(fs))
    if crash:
        found["log items"] = comparable_logs(crash, scenario, _OF_LOGS)
    return found


def _of_run(ran: Ran) -> Answer:
    maps = map(joined, ran.mapped)
    return {"calls": dict(enumerate(ran.ended, 3)), "fsyncs": dict(enumerate(ran.synced, 1)),
            "maps": dict(enumerate(maps, 1))}  # fmt: skip


def _of_disk(fs: Filesystem) -> Answer:
    return {"listings": untimed(model_listing(fs)), "files": dict(stored_files(fs))}


def said(kernel: Kernel, scenario: Scenario, image: Path) -> Answer:
    """Ask a kernel of an image: streams and extents, or what a mount makes of its log."""
    bench = Bench(kernel)
    with bench.new_image() as copy:
        shutil.copyfile(image, copy)
        with Filesystem.open(copy) as fs:
            wanted = plans(fs, random.Random(0))
            files = sorted(f"{above}/{path}".lstrip("/")
                           for above, rows in model_listing(fs).items()
                           for path, record in rows.items() if "sha256" in record)  # fmt: skip
        if scenario.steps[-1].name == "crash":
            listed, _ = both_replayed(bench, copy)
            replayed = listed if isinstance(listed, int | str) else untimed(listed)
            return {"replay": replayed}
        targets = [kernel.new_file() for _ in wanted]
        with bench.looked_at(copy) as place:
            ended = kernel.call(asked.streams, place, wanted, list(map(str, targets)))
            extents = kernel.call(asked.sharing, place, files, [], [])["extents"]
        streams = {str(dict(what)): (status, target.read_bytes())
                   for what, status, target in
                   zip(wanted, ended, targets, strict=True)}  # fmt: skip
        for target in targets:
            target.unlink()
        return {"streams": streams, "extents": dict(zip(files, extents, strict=True))}


def first_difference(old: Answer, new: Answer) -> tuple[list[str], Any, Any] | None:
    """Return where two answers differ first, with what both say there; None where nowhere.

    Where: what is asked, the keys below it, and the fields that differ.

    >>> first_difference({"fsyncs": {1: "log"}}, {"fsyncs": {1: "none"}})
    (['fsyncs', '1'], 'log', 'none')
    """
    for part, value in old.items():
        if value != new.get(part):
            where, theirs, ours = _below(value, new.get(part))
            return [part, *where, *differing(theirs, ours)], theirs, ours
    return None


def _below(old: Any, new: Any) -> tuple[list[str], Any, Any]:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return [], old, new
    key = next(key for key in sorted(old.keys() | new.keys(), key=repr)
               if old.get(key) != new.get(key))  # fmt: skip
    if key not in old or key not in new:
        return [str(key)], old.get(key), new.get(key)
    where, theirs, ours = _below(old[key], new[key])
    return [str(key), *where], theirs, ours
