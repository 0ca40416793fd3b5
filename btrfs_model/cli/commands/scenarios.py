# SPDX-License-Identifier: GPL-2.0-only
"""Commands that make images: ``mkfs``, ``run``, ``replay-log``, ``sample``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.cli.common import echo, print_table, progress, write_json
from btrfs_model.cli.flags import (
    SIZE,
    Command,
    behaviour_option,
    json_option,
    machine_option,
    offers,
    output_option,
    work_option,
    written_image_argument,
)
from btrfs_model.cli.times import print_time, timed_on

if TYPE_CHECKING:
    import pandas as pd

    from btrfs_model.base.counters import Work
    from btrfs_model.experiments.scenario.operations import Step
    from btrfs_model.mount.log.trace import Trace
    from btrfs_model.mount.writable import WritableFilesystem


_HEAD: Final = 128 << 10
"""Bytes at the front of a device in which filesystems have their superblocks."""


def _pairs(_: click.Context, option: click.Parameter, words: tuple[str, ...]) -> dict[str, str]:
    """Read ``KIND:PATH``; without a kind it is the usual one."""
    usual = "rw" if option.name == "subvolumes" else ""
    found: dict[str, str] = {}
    for word in words:
        kind, colon, path = word.partition(":")
        found[path if colon else kind] = kind if colon else usual
    return found


def _features(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> dict[str, bool]:
    from btrfs_model.mount.mkfs.options import parse_features

    try:
        return {name: on for word in words for name, on in parse_features(word).items()}
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _releases() -> list[str]:
    from btrfs_model.mount.mkfs.releases import RELEASES

    return [*RELEASES]


@click.command(
    cls=Command,
    examples=(
        "btrfs-model mkfs disk.img -b 1G",
        "btrfs-model mkfs disk.img --rootdir folder",
        "btrfs-model mkfs disk.img --rootdir folder --compress zstd:3 -u ro:snapshots",
        "btrfs-model mkfs disk.img -b 10G --progs 6.2 -n 4096 -m single -O ^no-holes",
    ),
)
@written_image_argument
@click.option("-b", "--byte-count", "size", default="0", type=SIZE, metavar="SIZE",
              help="Size of the device. Without it that of the file that is there, or what the "
                   "folder needs.")  # fmt: skip
@click.option("--progs", default="7.3", show_default=True, shell_complete=offers(_releases),
              help="Release of btrfs-progs: 6.2, 6.14, 6.19 or 7.3.")  # fmt: skip
@click.option("-n", "--nodesize", default="0", type=SIZE, metavar="SIZE",
              help="Size of tree blocks, 4K to 64K: usually 16K, 4K with --mixed.")  # fmt: skip
@click.option("-m", "--metadata", default="",
              help="Copies of metadata: usually dup, single with --mixed.")  # fmt: skip
@click.option("-d", "--data", default="single", show_default=True,
              help="Copies of data: single or dup.")  # fmt: skip
@click.option("-M", "--mixed", is_flag=True, help="Mix data and metadata.")
@click.option("--csum", default="crc32c", show_default=True, help="Checksum.")
@click.option("-O", "--features", multiple=True, callback=_features, metavar="LIST",
              help="Features with commas between, ^ before those to leave out.")  # fmt: skip
@click.option("-L", "--label", default="", help="Label.")
@click.option("-U", "--uuid", default="", help="uuid of the filesystem.")
@click.option("--device-uuid", default="", metavar="UUID", help="uuid of the device.")
@click.option("-r", "--rootdir", metavar="FOLDER", help="Copy the files of this folder.")
@click.option("--compress", default="no", metavar="ALGO[:LEVEL]",
              help="Compress what is copied: zlib, lzo or zstd.")  # fmt: skip
@click.option("-u", "--subvol", "subvolumes", multiple=True, callback=_pairs,
              metavar="[TYPE:]SUBDIR",
              help="Make this folder a subvolume: rw, ro, default or default-ro.")  # fmt: skip
@click.option("--inode-flags", "flags", multiple=True, callback=_pairs, metavar="FLAGS:PATH",
              help="Give a path flags: nodatacow, nodatasum.")  # fmt: skip
@click.option("--reflink", is_flag=True,
              help="Share data with the files, where all is on one filesystem.")  # fmt: skip
@click.option("--shrink", is_flag=True, help="End the device where its last chunk ends.")
@click.option("--seed", default=0, show_default=True, help="What uuids come from.")
@click.option("-f", "--force", is_flag=True, help="Replace a file that holds something.")
def mkfs(
    image: Path,
    size: int,
    force: bool,
    shrink: bool,
    reflink: bool,
    seed: int,
    rootdir: str | None,
    compress: str,
    subvolumes: dict[str, str],
    flags: dict[str, str],
    features: dict[str, Any],
    **options: Any,
) -> None:
    """Make a filesystem in the file IMAGE, as mkfs.btrfs of a release of btrfs-progs does.

    IMAGE is replaced as a whole; where it holds something, with --force alone. The variables
    SOURCE_DATE_EPOCH and DETERMINISTIC_SEED do what they do for mkfs.btrfs 7.3. The image is the
    same byte by byte, also with the files of a folder, except uuids that nobody chose. Times of
    subvolumes are those of SOURCE_DATE_EPOCH, too; mkfs.btrfs takes them from the clock.
    """
    from btrfs_model.mount.mkfs.layout import Format
    from btrfs_model.mount.mkfs.make import fresh
    from btrfs_model.questions.rootdir.make import Made, make
    from btrfs_model.questions.rootdir.source import Rootdir

    if not rootdir and (compress != "no" or subvolumes or flags or shrink or reflink):
        raise click.UsageError("--compress, --subvol, --inode-flags, --reflink and --shrink go "
                               "with --rootdir")  # fmt: skip
    if image.is_file() and not force and _holds_something(image):
        raise BtrfsModelError(f"{image}: it holds something; --force replaces it")
    if not size and image.exists():
        size = image.stat().st_size
    if not size and not rootdir:
        raise click.UsageError("how large? -b SIZE, or --rootdir, or a file that has its size")
    mixed = options["mixed"]
    options["nodesize"] = options["nodesize"] or (4096 if mixed else 16384)
    options["metadata"] = options["metadata"] or ("single" if mixed else "dup")
    try:
        chosen = Format(size, **options, **features)
        if rootdir:
            compress = "" if compress == "no" else compress
            source = Rootdir(rootdir, subvolumes, flags, compress, reflink)
            made = make(source, chosen, seed=seed, shrink=shrink)
        else:
            chosen.check()
            made = Made(fresh(chosen, seed))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    made.save(image)


def _holds_something(path: Path) -> bool:
    """Whether a file has a byte that is not zero where filesystems have their superblocks."""
    with path.open("rb") as file:
        return any(file.read(_HEAD))


@click.command(
    cls=Command,
    examples=(
        "btrfs-model run scenario.json -o disk.img",
        """echo '{"ops": [["mkdir", "d"], ["sync"]]}' > s.json""",
        "btrfs-model run s.json -o disk.img --size 1G",
        "btrfs-model run ops.jsonl.zst -o disk.img --behaviour v5.10",
        "btrfs-model run scenario.json -o disk.img --work fsyncs.json",
        "btrfs-model run scenario.json -o disk.img --trace",
    ),
)
@click.argument("scenario", type=click.Path(path_type=Path))
@output_option("Image file to write.", "IMAGE", name="image", was=("--output",), required=True)
@click.option("--size", default="256M", show_default=True, type=SIZE, metavar="SIZE",
              help="Size of the device.")  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="What uuids and times come from.")
@behaviour_option()
@work_option("Write how often each kernel function was called, a list of the fsyncs.")
@click.option("--trace", is_flag=True,
              help="Print what fsyncs, renames, links and unlinks decide, a row for each "
              "tracepoint of Linux 7.2.")  # fmt: skip
@machine_option
def run(
    scenario: Path,
    image: Path,
    size: int,
    seed: int,
    behaviour: str,
    work: Path | None,
    trace: bool,
    machine: str | None,
) -> None:
    """Carry out the operations of SCENARIO on a new filesystem and write its image.

    SCENARIO is a JSON object {"ops": [...]} or a file of JSON lines, each operation a list such as
    ["mkdir", "d"]; btrfs_model/experiments/scenario/operations.py lists them. An operation that
    fails ends the run with its number, and no image is written. Each "crash" writes what a crash at
    that point would leave, the last commit and the logs of fsync, to IMAGE.crash1, IMAGE.crash2,
    ... What an fsync logs is that of the kernel of --behaviour. With --machine, and on a
    terminal with --work, the time of each fsync that the log is enough for is told on standard
    error, except for waiting for writes.
    """
    from btrfs_model.experiments.scenario.load import load_scenario
    from btrfs_model.experiments.scenario.run import run_scenario

    computes = timed_on(machine, work)
    loaded = load_scenario(scenario)
    fsyncs: list[dict[str, Any]] = []
    traced: list[tuple[Step, Trace]] = []
    written: list[Path] = []

    def crashed(fs: WritableFilesystem, number: int) -> None:
        path = Path(f"{image}.crash{number}")
        fs.save_crash(path)
        written.append(path)

    def synced(step: Step, how: str, counted: Work) -> None:
        fsyncs.append({"step": str(step), "how": how, "work": dict(sorted(counted.items()))})

    try:
        with (
            progress(len(loaded.steps)) as step,
            run_scenario(
                loaded,
                size=size,
                seed=seed,
                behaviour=behaviour,
                step=step,
                crashed=crashed,
                synced=synced,
                traced=traced if trace else None,
            ) as fs,
        ):
            fs.save(image)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    write_json(work, fsyncs)
    if trace:
        print_table(_decided(traced), as_json=False)
    for one in fsyncs:
        if computes is not None and one["how"] == "log":
            print_time(one["step"], computes, one["work"])
        elif computes is not None:
            click.echo(f"{one['step']}: {one['how']}", err=True)


def _decided(traced: Sequence[tuple[Step, Trace]]) -> pd.DataFrame:
    """Return a row for each event, with the operation that it is of."""
    import pandas as pd

    tables = [one.table.assign(step=str(step)) for step, one in traced if one.events]
    if not tables:
        return pd.DataFrame(columns=["step"])
    table = pd.concat(tables, ignore_index=True)
    return table[["step", *table.columns.drop("step")]]


@click.command(
    cls=Command,
    examples=(
        "btrfs-model replay-log crashed.img -o recovered.img",
        "btrfs-model replay-log crashed.img -o recovered.img --behaviour v5.10",
    ),
)
@written_image_argument
@output_option("Image file to write.", "NEW_IMAGE", was=("--output",), required=True)
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
    with WritableFilesystem.load(image, replay_behaviour=behaviour) as replayed:
        replayed.save(output)
    subvolumes = ", ".join(map(str, logs))
    echo(f"replayed the log of subvolume {subvolumes}" if logs else "there is no log")


def _samples() -> list[str]:
    from btrfs_model.base.samples import described

    return [name for name, _ in described()]


@click.command(
    cls=Command,
    examples=(
        "btrfs-model sample",
        "btrfs-model sample zstd -o disk.img",
        "btrfs-model sample kernel/send/send-utimes/n200 -o disk.img",
    ),
)
@click.argument("name", required=False, shell_complete=offers(_samples))
@output_option("Image file to write; it is yours.", "IMAGE", was=("--output",))
@json_option("List them as one JSON object a line.")
def sample(name: str | None, output: Path | None, as_json: bool) -> None:
    """Write an image that a kernel made, or list those that are there with what each shows.

    Of a NAME its end will do where there is only one such. An installed package has small samples;
    BTRFS_MODEL_DATA names the folder 'data' of a clone, which has all.
    """
    from btrfs_model.base.samples import described, write_sample

    if (name is None) != (output is None):
        raise click.UsageError("NAME goes with -o IMAGE")
    if name is not None and output is not None:
        write_sample(name, output)
        return
    import pandas as pd

    print_table(pd.DataFrame(described(), columns=["name", "shows"]), as_json=as_json)
