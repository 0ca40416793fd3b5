# SPDX-License-Identifier: GPL-2.0-only
"""The command ``run``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from btrfs_model.cli.common import Command, behaviour_option, progress

if TYPE_CHECKING:
    from btrfs_model.filesystem.writable import WritableFilesystem

__all__ = ["run"]

_UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}


def _bytes(_: click.Context, __: click.Parameter, value: str) -> int:
    number, unit = (value[:-1], value[-1:].upper()) if value[-1:].isalpha() else (value, "")
    try:
        size = int(number) << _UNITS[unit] if unit else int(number)
    except (KeyError, ValueError):
        size = 0
    if size <= 0:
        raise click.BadParameter("a number of bytes, perhaps with K, M, G or T behind it")
    return size


@click.command(
    cls=Command,
    examples=(
        "btrfs-model run scenario.json -o disk.img",
        """echo '{"ops": [["mkdir", "d"], ["sync"]]}' > s.json""",
        "btrfs-model run s.json -o disk.img --size 1G",
        "btrfs-model run ops.jsonl.zst -o disk.img --behaviour v5.10",
    ),
)
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("-o", "--output", "image", required=True, type=click.Path(path_type=Path),
              metavar="IMAGE", help="Image file to write.")  # fmt: skip
@click.option("--size", default="256M", show_default=True, callback=_bytes, metavar="SIZE",
              help="Size of the device.")  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="What uuids and times come from.")
@behaviour_option()
def run(scenario: Path, image: Path, size: int, seed: int, behaviour: str) -> None:
    """Carry out the operations of SCENARIO on a new filesystem and write its image.

    SCENARIO is a JSON object {"ops": [...]} or a file of JSON lines, each operation a list such as
    ["mkdir", "d"]; btrfs_model/scenario/operations.py lists them. An operation that fails ends the
    run with its number, and no image is written. Each "crash" writes what a crash at that point
    would leave, the last commit and the logs of fsync, to IMAGE.crash1, IMAGE.crash2, ... What an
    fsync logs is that of the kernel of --behaviour.
    """
    from btrfs_model.scenario import load_scenario, run_scenario

    loaded = load_scenario(scenario)

    def crashed(fs: WritableFilesystem, number: int) -> None:
        fs.save_crash(f"{image}.crash{number}")

    with (
        progress(len(loaded.steps)) as step,
        run_scenario(
            loaded, size=size, seed=seed, behaviour=behaviour, step=step, crashed=crashed
        ) as fs,
    ):
        fs.save(image)
