# SPDX-License-Identifier: GPL-2.0-only
"""The command ``replay-log``."""

from __future__ import annotations

from pathlib import Path

import click

from btrfs_model.cli.common import Command, behaviour_option, echo, written_image_argument


@click.command(
    cls=Command,
    examples=(
        "btrfs-model replay-log crashed.img -o recovered.img",
        "btrfs-model replay-log crashed.img -o recovered.img --behaviour v5.10",
    ),
)
@written_image_argument
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path),
              metavar="NEW_IMAGE", help="Image file to write.")  # fmt: skip
@behaviour_option()
def replay_log(image: Path, output: Path, behaviour: str) -> None:
    """Replay the log of IMAGE and write what a mount would make of it.

    IMAGE stays as it is; where its log is damaged, no new image is written. The log may be of any
    kernel, --behaviour is the one that mounts it.
    """
    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.volume.filesystem import Filesystem

    if output.exists() and output.samefile(image):
        raise click.UsageError("NEW_IMAGE is IMAGE")
    with Filesystem.open(image) as fs:
        logs = sorted(fs.log_trees)
    with WritableFilesystem.load(image, replay=behaviour) as replayed:
        replayed.save(output)
    subvolumes = ", ".join(map(str, logs))
    echo(f"replayed the log of subvolume {subvolumes}" if logs else "there is no log")
