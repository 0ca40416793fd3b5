# SPDX-License-Identifier: GPL-2.0-only
"""The command ``script``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from btrfs_model.cli.common import print_table, write_table
from btrfs_model.cli.flags import (
    SIZE,
    Command,
    behaviour_option,
    device_option,
    json_option,
    machine_option,
    output_option,
)

if TYPE_CHECKING:
    from btrfs_model.scripts.answer import Line
    from btrfs_model.scripts.find import Found
    from btrfs_model.scripts.run import ScriptResult


def _variables(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for one in value:
        name, equals, told = one.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{one!r} is not NAME=VALUE")
        found[name] = told
    return found


@click.command(
    cls=Command,
    examples=(
        "btrfs-model script measure.sh",
        "btrfs-model script the.patch --show",
        "btrfs-model script the.mail --commit 339d03542484",
        "btrfs-model script the.mail --commit 339d03542484 --html the.html",
        "btrfs-model script measure.sh --device deskstar-7k500 -- 100000",
    ),
)
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1)
@behaviour_option()
@click.option("--before", metavar="B", help="Run it on this kernel, and then on that of --after.")
@click.option("--after", metavar="B", help="The other kernel.  [default: --behaviour]")
@click.option("--commit", metavar="COMMIT",
              help="Run it right before this commit of the table, and right after it.")  # fmt: skip
@click.option("--show", is_flag=True, help="Print what was taken for the script, and run nothing.")
@click.option("--number", default=0, metavar="N", help="Which script, where FILE has several.")
@click.option("--size", default="100G", show_default=True, type=SIZE, metavar="SIZE",
              help="Of a device that comes into being when the script names it.")  # fmt: skip
@click.option("--steps", default=100_000_000, show_default=True, metavar="N",
              help="Commands that it may run.")  # fmt: skip
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="It begins in a copy of DIR in memory: what it sources is there.",
)
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", callback=_variables,
              help="An environment variable.")  # fmt: skip
@click.option("--jobs-order", default=0, metavar="SEED",
              help="Background jobs take turns: another number is another order.")  # fmt: skip
@device_option(
    default="",
    help="What logs are written to, and tree blocks read from after a mount; without it, nothing "
    "is waited for.",
)
@machine_option
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), metavar="PAGE.html",
              help="Write all of it as a page, too.")  # fmt: skip
@output_option("Write steps.parquet, regions.parquet, and an image of each filesystem there, as "
               "the script leaves it.", "DIR", name="out")  # fmt: skip
@json_option("Print one JSON object instead: output, times, comparison.")
@click.pass_context
def script(
    context: click.Context, file: Path, arguments: tuple[str, ...], behaviour: str,
    before: str | None, after: str | None, commit: str | None, show: bool, number: int, size: int,
    steps: int, device: str, machine: str | None, html: Path | None, out: Path | None,
    as_json: bool, folder: Path | None, sets: dict[str, str], jobs_order: int,
) -> None:  # fmt: skip
    """Run a shell script on the model: that of a file, a mail, a patch or a commit message.

    The script makes its filesystems itself (mkfs.btrfs, mount): a device comes into being when it
    is named. Nothing of this machine is changed by the script, and only --folder is seen: files
    outside of mounts are in memory, and filters such as sed and awk see bytes alone. The clock goes
    on by what calls are predicted to take, so `date` and `time` tell predictions.

    What the script prints is printed. Then a table says what each part between two readings of the
    clock takes, on both kernels with --before, and whether what the message shows as output is what
    came. The exit status is that of the script.
    """
    from btrfs_model.cost.machine import chosen

    one = chosen_script(file, number)
    if show:
        click.echo(one.text, nl=False)
        return
    costs = chosen(machine)
    if commit is not None:
        before, after = f"{commit}^", commit
    sides = [(after or behaviour, True)]
    if before is not None:
        sides.insert(0, (before, False))
    name = "script"
    if folder is not None and not folder.is_dir():
        raise click.UsageError(f"--folder {folder}: there is no such directory")
    if folder is not None and file.resolve().is_relative_to(folder.resolve()):
        name = str(file.resolve().relative_to(folder.resolve()))
    results = [
        _run(file, one, arguments, told=told and not as_json, behaviour=side, machine=costs,
             size=size, steps=steps, device=device, folder=folder, name=name, variables=sets,
             jobs_order=jobs_order)
        for side, told in sides
    ]  # fmt: skip
    if as_json:
        _as_json(one, [str(side) for side, _ in sides], results)
    else:
        _tables(one, [str(side) for side, _ in sides], results)
    if html is not None:
        _write_page(html, file.name, one, [str(side) for side, _ in sides], results)
    if out is not None:
        _write_folder(out, [str(side) for side, _ in sides], results)
    for result in results:
        result.close()
    context.exit(results[-1].status)


def _write_page(
    html: Path, name: str, one: Found, names: list[str], results: list[ScriptResult]
) -> None:
    from btrfs_model.base.version import __version__
    from btrfs_model.base.whole_file import whole_file
    from btrfs_model.experiments.report.script import page

    with whole_file(html, special=True) as file:
        file.write(page(name, one, names, results, __version__).encode())


def _write_folder(out: Path, names: list[str], results: list[ScriptResult]) -> None:
    from btrfs_model.scripts.answer import tables

    out.mkdir(parents=True, exist_ok=True)
    for name, table in tables(names, results).items():
        write_table(table, out / f"{name}.parquet")
    for path, fs in results[-1].filesystems.items():
        fs.save(out / (path.strip("/").replace("/", "-") + ".img"))


def _found(file: Path) -> list[Found]:
    from btrfs_model.base.errors import BtrfsModelError
    from btrfs_model.scripts.find import scripts_in
    from btrfs_model.shell.parse import parse

    text = file.read_text("utf-8", "surrogateescape")
    is_script = file.suffix in (".sh", ".bash")
    try:
        found = scripts_in(text, is_script=is_script)
        if is_script:  # what bash refuses is told before anything runs
            parse(found[0].text)
    except BtrfsModelError as error:
        raise BtrfsModelError(f"{file}: {error}") from error
    return found


def chosen_script(file: Path, number: int) -> Found:
    """Return a script of a file by its number, the first one without any."""
    found = _found(file)
    if number:
        if not 1 <= number <= len(found):
            raise click.UsageError(f"{file} has {len(found)} scripts: --number 1 to {len(found)}")
        return found[number - 1]
    if len(found) > 1:
        lines = ", ".join(f"{at} at line {one.line}" for at, one in enumerate(found, 1))
        click.echo(f"{file} has {len(found)} scripts ({lines}): the first is taken, --number says "
                   "another", err=True)  # fmt: skip
    return found[0]


def _run(
    file: Path, one: Found, arguments: tuple[str, ...], *, told: bool, **chosen: Any
) -> ScriptResult:
    from btrfs_model.base.errors import BtrfsModelError
    from btrfs_model.scripts.run import Writing
    from btrfs_model.scripts.run import script as run
    from btrfs_model.shell.parse import ShellSyntaxError
    from btrfs_model.shell.state import ShellError

    output = Writing(sys.stdout.buffer) if told else None
    try:
        return run(one.text, *arguments, output=output, **chosen)
    except (ShellError, ShellSyntaxError) as error:
        where = f"script from line {one.line}: " if one.line > 1 else ""
        raise BtrfsModelError(f"{file}: {where}{error}") from error


def _tables(one: Found, names: list[str], results: list[ScriptResult]) -> None:
    import pandas as pd

    from btrfs_model.scripts.answer import beside, regions, rows

    sys.stdout.flush()
    told = rows(names, [regions(result) for result in results])
    if told:
        click.echo(f"\nBetween readings of the clock, on {results[0].machine.name}:")
        compares = len(names) > 1
        columns = ["lines", *names, *(["ratio"] if compares else []), "depends on", "calls"]
        cells = [(row.lines, *row.times, *([row.ratio] if compares else []), row.depends, row.what)
                 for row in told]  # fmt: skip
        print_table(pd.DataFrame(cells, columns=columns))
    for row in told:
        if row.why:
            click.echo(f"lines {row.lines}, ratio not told: {row.why}")
    if one.printed:
        _beside(
            {
                name: beside(result.output.decode(errors="replace"), one.printed)
                for name, result in zip(names, results, strict=True)
            }
        )


def _beside(sides: dict[str, list[Line]]) -> None:
    """Say how many lines are equal on each side, and show those that are not on the best."""
    equal = {name: sum(one.same for one in lines) for name, lines in sides.items()}
    best = max(equal, key=equal.__getitem__)
    told = ", ".join(f"{count} on {name}" for name, count in equal.items())
    click.echo(f"\nOf {len(sides[best])} lines that the message shows are equal (times apart): "
               f"{told}.")  # fmt: skip
    for one in sides[best]:
        if not one.same:
            click.echo(f"  shown:   {one.shown}")
            if one.printed is not None:
                click.echo(f"  printed: {one.printed}")


def _as_json(one: Found, names: list[str], results: list[ScriptResult]) -> None:
    from btrfs_model.scripts.answer import beside, regions

    sides = []
    for name, result in zip(names, results, strict=True):
        lines = beside(result.output.decode(errors="replace"), one.printed)
        sides.append({
            "behaviour": name, "status": result.status,
            "output": result.output.decode("utf-8", "surrogateescape"),
            "lines": [{"shown": line.shown, "printed": line.printed, "same": line.same}
                      for line in lines],
            "regions": [{"lines": list(region.lines), "what": region.what,
                         "time": region.time.as_dict() if region.time else None,
                         "without_cost": list(region.uncounted),
                         "depends_on": list(region.depends)}
                        for region in regions(result)],
        })  # fmt: skip
    click.echo(json.dumps({"script": one.text, "line": one.line, "sides": sides}))
