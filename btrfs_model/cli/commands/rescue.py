# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs-model rescue`` and ``heal``: what can be read of a damaged image, and made right."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from btrfs_model.cli.common import aside, note, print_table, progress, stdout
from btrfs_model.cli.flags import Command, Images, image_argument, json_option, output_option


@click.command(
    cls=Command,
    examples=(
        "btrfs-model rescue broken.img -o folder",
        "btrfs-model rescue broken.img -o all.tar --json | jq -r .path",
        "btrfs-model rescue broken.img --roots",
        "btrfs-model rescue broken.img --root 12 --subvol home -o folder",
        "btrfs-model rescue broken.img",
    ),
)
@image_argument
@output_option("Where files go: a folder, new or empty, or a tar archive for a name in .tar.  "
               "[default: nowhere, all is read]", "FOLDER|TAR", default=None)  # fmt: skip
@click.option("--subvol", "subvolume", metavar="SUBVOL",
              help="This subvolume alone, by path or id.  [default: all]")  # fmt: skip
@click.option("--root", type=int, metavar="GENERATION|BYTENR",
              help="The root to be taken.  [default: the newest that can be used]")  # fmt: skip
@click.option("--roots", is_flag=True, help="List the roots within reach instead.")
@json_option("One JSON object a line for what is lost, or each root.")
@click.pass_context
def rescue(
    context: click.Context,
    image: Images,
    output: Path | None,
    subvolume: str | None,
    root: int | None,
    roots: bool,
    as_json: bool,
) -> None:
    """Write all files that can still be read of an image, damaged or sound.

    The superblock, the trees of roots and of chunks may be lost: blocks are then found by a scan.
    Where a checksum exists, no byte that differs from it is given. What is lost is skipped, and
    listed. The exit status is 1 when anything was lost or is doubtful.

    A file that no directory leads to is in lost+found, by the numbers of its subvolume and inode.
    What fsync put into a log after the last commit is not looked at: replay-log does that.
    """
    from btrfs_model.questions.rescue.api import rescue as rescue_image
    from btrfs_model.questions.rescue.api import rescue_roots

    if roots:
        if output is not None or subvolume is not None or root is not None:
            raise click.UsageError("--roots goes with none of --out, --subvol and --root")
        with progress() as step:
            step("looking for roots")
            table = rescue_roots(list(image.paths), mounted=image.mounted)
        print_table(table, as_json=as_json)
        return
    if str(output) == "-" and sys.stdout.isatty():
        raise click.UsageError("not writing a tar archive to a terminal, redirect it into a file")
    if str(output) == "-" and as_json:
        raise click.UsageError("--json and --out - exclude each other")
    with progress() as step:
        step(f"reading {image}")
        found = rescue_image(
            list(image.paths), stdout() if str(output) == "-" else output, subvolume=subvolume,
            root=root, mounted=image.mounted,
        )  # fmt: skip
    table = found.table
    if len(table):
        print_table(table, as_json=as_json, err=str(output) == "-")
    aside(f"{found.root}: {found.files} files, {found.directories} directories, {found.size} bytes")
    if not found.is_whole:
        note(f"{len(table)} rows say what is lost or doubtful")
    context.exit(0 if found.is_whole else 1)


@click.command(
    cls=Command,
    examples=(
        "btrfs-model heal rotted.img --from monday.stream -o p.json --copy new.img",
        "btrfs-model heal rotted.img --from older.img --from disk.stream --json",
        "btrfs-model heal rotted.img",
    ),
)
@image_argument
@click.option("--from", "sources", multiple=True, type=click.Path(path_type=Path),
              metavar="STREAM|IMAGE", help="Where right bytes may be; several times.  "
              "[default: the image's other copies alone]")  # fmt: skip
@output_option("Write the right bytes there, as JSON lines.", default=None)
@click.option("--copy", type=click.Path(path_type=Path), metavar="FILE",
              help="Write a copy of the image there that has them.")  # fmt: skip
@json_option("One JSON object a line.")
@click.pass_context
def heal(
    context: click.Context,
    image: Images,
    sources: tuple[Path, ...],
    output: Path | None,
    copy: Path | None,
    as_json: bool,
) -> None:
    """Find the right bytes of sectors and tree blocks that have a wrong checksum.

    They are right when they have the checksum that the image has for them. They may be in another
    copy (DUP, RAID), in what a send stream writes, in another image, or in any file. Of compressed
    extents the compressed bytes are wanted, as streams with `send --proto 2 --compressed-data`
    have them.

    IMAGE stays as it is. Each wrong run of bytes is a row; SOURCE is empty where the right bytes
    were not found. The exit status is 1 then.
    """
    from btrfs_model.questions.rescue.heal import heal as heal_image

    with progress() as step:
        step(f"checking {image}")
        healed = heal_image(list(image.paths), sources, output, copy=copy, mounted=image.mounted)
    table = healed.table
    if len(table):
        print_table(table, as_json=as_json, narrow=("what", "device", "offset", "path", "source"))
    found = int((table["source"] != "").sum())
    aside(f"{image}: {len(table)} runs of bytes are wrong, of {found} the right bytes were found")
    if healed.chance > _UNLIKELY:
        note(f"a checksum alone tells some of them; that one fits by chance: {healed.chance:.1e}")
    context.exit(0 if healed.is_whole else 1)


_UNLIKELY = 1e-6
