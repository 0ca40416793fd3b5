# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs-model kernel``: kernels that are got, listed, built and set beside each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from btrfs_model.cli.common import aside, print_json_lines, print_table, progress
from btrfs_model.cli.flags import Command, json_option, output_option


@click.command(
    cls=Command,
    examples=(
        "btrfs-model kernel get sid",
        "btrfs-model verify log --kernel sid",
        "btrfs-model kernel get 7.3",
        "btrfs-model verify log --kernel qemu:7.3.4 --seeds 3",
        "btrfs-model kernel list",
        "btrfs-model kernel bisect scenario.json --from 6.1.176 --to sid",
        "btrfs-model kernel build linux-source-6.1 -o counting",
        "btrfs-model verify counts --kernel counting/linux",
    ),
)
@click.argument("what", type=click.Choice(["get", "list", "build", "bisect"]))
@click.argument("name", metavar="[SUITE|VERSION|TREE|SCENARIO]", required=False)
@click.option("--from", "first", metavar="KERNEL", default="",
              help="Of bisect: the first, by name or release.")  # fmt: skip
@click.option("--to", "last", metavar="KERNEL", default="", help="Of bisect: the last.")
@click.option("--kernel", "kernels", multiple=True, metavar="KERNEL",
              help="Of bisect: among these alone; several times.")  # fmt: skip
@output_option("A folder that `build` makes.", "DIR", default="linux", show_default=True)
@json_option("Of get, list and bisect: JSON objects.")
def kernel(
    what: str,
    name: str | None,
    first: str,
    last: str,
    kernels: tuple[str, ...],
    output: Path,
    as_json: bool,
) -> None:
    """Get a kernel of another release, list those that are here, or build one that counts.

    get unpacks the User-Mode Linux of a suite of Debian into the cache (sid, without SUITE: the
    newest); nothing is installed, and it needs no root. `--kernel SUITE` takes it from then on.

    With a VERSION (7.3.4; 7.3: the newest of them) get unpacks Debian's kernel for machines and the
    modules that are needed: 100 to 170 MB to download, 20 MB are kept. `--kernel qemu:VERSION` runs
    it in qemu-system-x86_64, which is to be installed. That is emulated, and slow: half a minute to
    the first answer.

    bisect looks among the kernels that are here, in the order of releases, for the first whose
    answer to a scenario of `run` is another than that of the first: how calls end, what fsyncs log,
    what is stored, streams and extents, what a mount makes of a log. It names the toggles between
    the two, and commits whose titles fit.

    build makes a User-Mode Linux whose btrfs counts what it runs, and has its tracepoints. TREE is
    the source of a kernel, which is left as it is. It takes some minutes, and gcc, make, flex,
    bison and bc. The program is DIR/linux.
    """
    import pandas as pd

    from btrfs_model.kernels import debian
    from btrfs_model.kernels.build import build

    others = {"as_json": what == "build", "output": what != "build"}
    others |= dict.fromkeys(("first", "last", "kernels"), what != "bisect")
    _refuse(f"kernel {what}", [name for name, no in others.items() if no])
    if what == "bisect":
        if name is None:
            raise click.UsageError("kernel bisect: which scenario?")
        return _bisect(Path(name), kernels, first, last, as_json)
    if what == "build":
        if name is None:
            raise click.UsageError("kernel build: which tree?")
        Path(name).stat()
        with progress() as step:
            build(Path(name), output, step)
        return
    if what == "get":
        name = name or "sid"
        with progress() as step:
            of_suite = not name[:1].isdigit()
            found = [(debian.get if of_suite else debian.get_release)(name, step)]
    elif name is None:
        found = [*debian.unpacked(), *debian.emulated()]
    else:
        raise click.UsageError(f"kernel list: {name} is too much")
    table = pd.DataFrame(found, columns=["kernel", "release", "program"]).astype(str)
    print_table(table, as_json=as_json)


def _refuse(command: str, options: Iterable[str]) -> None:
    """Refuse options that a part of a command does not have."""
    context = click.get_current_context()
    for one in context.command.params:
        given = context.get_parameter_source(one.name or "") is ParameterSource.COMMANDLINE
        if given and one.name in options:
            raise click.UsageError(f"{command}: it has no {one.opts[0]}")


def _bisect(path: Path, names: Sequence[str], first: str, last: str, as_json: bool) -> None:
    """Print which kernel is the first whose answer to a scenario changes."""
    import pandas as pd

    from btrfs_model.experiments.radar.bisect import bisected, kernels_between, told
    from btrfs_model.experiments.scenario.load import load_scenario

    scenario = load_scenario(path)
    kernels = kernels_between(names, first, last)
    with progress() as step:
        found = told(bisected(scenario, kernels, step))
    if as_json:
        return print_json_lines([found])
    print_table(pd.DataFrame(found["kernels"]), as_json=False)
    if not found["after"]:
        return aside("the first and the last answer alike")
    aside(f"another answer since {found['after']}, after {found['before']}: {found['where']}")
    for side in ("before", "after"):
        aside(f"{found[side]}: {found[f'said_{side}']}")
    print_table(pd.DataFrame(found["toggles"], columns=["toggle", "model", "commit", "title"]),
                as_json=False, title="toggles between")  # fmt: skip
    print_table(pd.DataFrame(found["titles"], columns=["release", "commit", "title"]),
                as_json=False, title="titles that fit")  # fmt: skip
    return None
