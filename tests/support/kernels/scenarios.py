# SPDX-License-Identifier: GPL-2.0-only
"""Scenarios carried out by the model and by the running kernel, and what comes of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from mounts import one_at_a_time

from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.run import Runner
from btrfs_model.experiments.verify import sides
from btrfs_model.kernels.inside.listing import Listing, kernel_listing
from btrfs_model.kernels.inside.mounts import Place
from btrfs_model.kernels.inside.operations import Operations
from btrfs_model.mount.writable import WritableFilesystem

SIZE = 128 << 20


@contextmanager
def model_run(scenario: Scenario) -> Iterator[tuple[WritableFilesystem, list[str]]]:
    """Carry a scenario out in the model; the filesystem, committed, and how each step ended."""
    runner = Runner(scenario, SIZE, 0)
    try:
        ended = sides.ended(runner.carry_out, scenario.steps)
        runner.fs().sync()
        yield runner.fs(), ended
    finally:
        runner.close()


@contextmanager
def operations(image: Path, options: str) -> Iterator[Operations]:
    """Operations on an image that the running kernel mounts."""
    with one_at_a_time(), TemporaryDirectory() as top:
        running = Operations(Place(source=str(image), top=top, options=options))
        try:
            yield running
        finally:
            running.unmount()


def kernel_run(scenario: Scenario, image: Path, paths: list[str]) -> tuple[list[str], Listing]:
    """Carry a scenario out on a fresh filesystem of mkfs.btrfs; how each step ended, and a listing.

    Parameters
    ----------
    scenario : Scenario
        Its first two operations are mkfs and mount.
    image : Path
        Where.
    paths : list of str
        Subvolumes that are listed.
    """
    sides.made_by_mkfs(scenario, image, SIZE)
    with operations(image, scenario.steps[1].arguments["options"]) as running:
        ended = ["", "", *running.take(sides.operations_of(scenario))]
        running.sync()
        return ended, kernel_listing(Path(running.top), paths)
