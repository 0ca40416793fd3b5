# SPDX-License-Identifier: GPL-2.0-only
"""Random scenarios: what the model writes, judged by ``btrfs check`` and by kernels."""

from pathlib import Path
from typing import Any

import live
import pytest
import scenarios
from corpus import LONG
from judges import ask
from progs import btrfs_check, needs_progs

import btrfs_model as bm
from btrfs_model.experiments.verify.listing import model_listing
from btrfs_model.experiments.verify.random.scenarios import random_scenario
from btrfs_model.kernels.inside.listing import Listing
from btrfs_model.kernels.session import Kernel

beside_the_kernel = live.beside_the_kernel

CHECKED = 5000 if LONG else 200
MOUNTED, BESIDE = (200, 200) if LONG else (20, 8)
IN_ONE_TEST = 25


@pytest.mark.claim("`btrfs check` finds nothing wrong after 200 random scenarios.", judge="progs")
@needs_progs
@pytest.mark.parametrize("first", range(0, CHECKED, IN_ONE_TEST))
def test_btrfs_check_finds_nothing(first: int, tmp_path: Path) -> None:
    image = tmp_path / "image"
    for seed in range(first, first + IN_ONE_TEST):
        with scenarios.model_run(random_scenario(seed)) as (fs, _):
            fs.save(image)
        assert not btrfs_check(image), f"seed {seed}"


@pytest.mark.claim(
    "The running kernel and that of User-Mode Linux mount, scrub and list the filesystems of "
    "random scenarios."
)
@pytest.mark.parametrize("seed", range(MOUNTED))
def test_the_kernel_lists_what_was_written(seed: int, kernel: Kernel) -> None:
    image = kernel.new_file()
    with scenarios.model_run(random_scenario(f"mounted {seed}")) as (fs, _):
        fs.save(image)
        wanted = model_listing(fs)
    written = "by the kernel" * 1000
    answer = ask(kernel, image, subvolumes=list(wanted), write={"written": written}, scrub=True)
    assert not answer.failed
    assert not answer.alarms
    assert answer.listing == wanted
    assert "no errors found" in answer.scrub
    assert not btrfs_check(image)
    with bm.open(image) as after:
        found = model_listing(after)
    image.unlink()
    assert found[""].pop("written")["size"] == len(written)
    for listing in (found, wanted):
        del listing[""][""]
    assert found == wanted


def untimed(listing: Listing) -> dict[str, dict[str, Any]]:
    """A listing less times, which are not those of the run, and transactions."""
    left_out = ("atime", "mtime", "ctime", "gen")
    return {
        subvolume: {
            path: {field: value for field, value in record.items() if field not in left_out}
            for path, record in paths.items()
        }
        for subvolume, paths in listing.items()
    }


@pytest.mark.claim("The running kernel ends each call of a random scenario with the same errno.")
@beside_the_kernel
@pytest.mark.parametrize("seed", range(BESIDE))
def test_the_kernel_does_the_same(seed: int, tmp_path: Path) -> None:
    scenario = random_scenario(f"beside {seed}", portable=True)
    with scenarios.model_run(scenario) as (fs, ours):
        wanted = model_listing(fs)
    theirs, listing = scenarios.kernel_run(scenario, tmp_path / "image", list(wanted))
    different = [(str(step), kernel, model) for step, kernel, model in
                 zip(scenario.steps, theirs, ours, strict=True) if kernel != model]  # fmt: skip
    assert not different
    assert untimed(listing) == untimed(wanted)
