# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs-model image`` and ``mount``: an image as a whole."""

from __future__ import annotations

from pathlib import Path

import click

from btrfs_model.cli.common import aside, give_table, note, progress
from btrfs_model.cli.flags import (
    Command,
    Images,
    image_argument,
    json_option,
    one_output,
    table_option,
)


@click.command(
    cls=Command,
    examples=(
        "btrfs-model image diff before.img after.img",
        "btrfs-model image diff mine.img theirs.img --files",
        "btrfs-model image diff a.img b.img --json | jq -r .field",
    ),
)
@click.argument("what", type=click.Choice(["diff"]))
@click.argument("image", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path))
@click.option("--files", is_flag=True, help="Show the files that differ, not the items.")
@json_option("One JSON object a line.")
@table_option()
def image(
    what: str, image: Path, other: Path, files: bool, as_json: bool, output: Path | None
) -> None:
    """Compare two images, and say what differs and what that is about.

    IMAGE and OTHER are a file each, or a folder of devices. Items of all trees are compared field
    by field, and each difference is about something: the address of things, generations, times,
    uuids, use of space, or content. An extent or chunk that lies elsewhere is known by what it
    says. Then the files of subvolumes with the same path are compared with their contents.
    The status is 1 where content or files differ.
    """
    from btrfs_model.base.errors import BtrfsModelError
    from btrfs_model.questions.imagediff import image_diff

    one_output(as_json, output)
    with progress() as step:
        step(f"comparing {image} with {other}")
        found = image_diff(image, other)
    give_table(found.files if files else found.table, output, as_json=as_json)
    told = f"{image} and {other}: {found}"
    if not found.is_same:
        raise BtrfsModelError(told)
    aside(told)


@click.command(
    cls=Command,
    examples=(
        "btrfs-model mount disk.img folder",
        "btrfs-model mount sda.img sdb.img folder",
    ),
)
@image_argument
@click.argument("folder", type=click.Path(path_type=Path))
def mount(image: Images, folder: Path) -> None:
    """Show the files of an image in an empty folder, read only, by FUSE.

    Subvolumes and snapshots are folders in it. It needs no root and no driver of btrfs, and works
    until the folder is unmounted (fusermount -u FOLDER) or the command is interrupted.
    It needs mfusepy: pip install 'btrfs_model[fuse]'.
    """
    from btrfs_model.questions.view import mount as show

    with image.open() as fs:
        note(f"{image} is in {folder} until fusermount -u {folder}")
        show(fs, folder)
