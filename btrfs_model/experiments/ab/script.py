# SPDX-License-Identifier: GPL-2.0-only
"""A script on the kernels before and after a change, and on the model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.cost.machine import Machine
from btrfs_model.experiments.ab.rows import Row, differing, row_of
from btrfs_model.experiments.verify.times import Taken, add_taken
from btrfs_model.experiments.workloads import Step
from btrfs_model.kernels import gcov
from btrfs_model.kernels.inside.script import count_script, run_script
from btrfs_model.kernels.scripts import check, command_of
from btrfs_model.kernels.session import Kernel
from btrfs_model.kernels.uml import Uml
from btrfs_model.scripts.find import devices_in, mounts_in, scripts_in
from btrfs_model.scripts.run import script as run_in_the_model
from btrfs_model.shell.parse import ShellSyntaxError
from btrfs_model.shell.state import ShellError

MEMORY: Final = 2 << 30
LIMIT: Final = 3600
"""Seconds that a script or a run of a workload may take."""
_DEVICE: Final = 16 << 30
_COUNTED: Final = 2
"""Runs that are counted: how often a thread comes to its work differs by chance."""
_NUMBER: Final = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")
_SHELLS: Final = ("bash", "sh", "dash")


@dataclass(frozen=True)
class Script:
    """A script that was found and looked at.

    Attributes
    ----------
    name : str
        What it is called.
    command : list of str
        What runs it.
    text : str
        What it says.
    devices, mounts : list of str
        Devices that it names, and folders that it mounts on.
    """

    name: str
    command: list[str]
    text: str
    devices: list[str]
    mounts: list[str]

    @property
    def is_shell(self) -> bool:
        """Whether the model may know its language."""
        return Path(self.command[0]).name in _SHELLS


def script_of(file: Path, temporary: Path) -> Script:
    """Find the script of a file, and let its interpreter look at it.

    Parameters
    ----------
    file : Path
        A script, or a mail or patch with one in it.
    temporary : Path
        A folder for one that is in a mail.

    Raises
    ------
    BtrfsModelError
        For a mail without a script, or with several.
    KernelMissingError, KernelFailedError
        With what the interpreter says.
    """
    whole = file.read_text("utf-8", "surrogateescape")
    path, text = file.resolve(), whole
    if not whole.startswith("#!"):
        try:
            found = scripts_in(whole, is_script=file.suffix in (".sh", ".bash"))
        except BtrfsModelError:
            found = []  # its interpreter says what is wrong
        if len(found) > 1:
            lines = ", ".join(f"line {one.line}" for one in found)
            raise BtrfsModelError(f"{file}: {len(found)} scripts ({lines}): write the one that is "
                                  "meant into a file (btrfs-model script --show)")  # fmt: skip
        if found and found[0].line > 1:
            path, text = temporary / file.name, found[0].text
            path.write_text(text, "utf-8", "surrogateescape")
    check(path)
    return Script(file.name, command_of(path), text, devices_in(text), mounts_in(text))


@contextmanager
def _blank(kernel: Kernel, script: Script) -> Iterator[dict[str, str]]:
    """Attach blank devices: one for each name in a script, the first of them ``$DEV`` too."""
    with ExitStack() as stack:
        sources = {}
        for number, name in enumerate(script.devices or [""]):
            image = kernel.images / f"device{number}"
            with image.open("wb") as file:
                file.truncate(_DEVICE)
            stack.callback(image.unlink)
            sources[name] = stack.enter_context(kernel.attached(image, read_only=False))
        yield sources


def measured(
    script: Script, kernels: Mapping[str, Kernel], runs: int, step: Step,
    modelled: Mapping[str, Mapping[str, tuple[float, ...]]],
) -> Iterator[Row]:  # fmt: skip
    """Run a script in turns; compare how long it takes, and the numbers in what it says."""
    found: dict[str, dict[tuple[object, ...], Taken]] = {side: {} for side in kernels}
    for run in range(1, runs + 1):
        for side, kernel in kernels.items():
            step(f"{script.name}: run {run} of {runs}, {side}")
            with _blank(kernel, script) as sources:
                took, said = kernel.call(
                    run_script, script.command, sources, kernel.top, script.mounts
                )
            add_taken(found[side], [Taken(script.name, "ms", values=[took]), *numbers(said)])
    before, after = found.values()
    for key, taken in before.items():
        if key in after:
            model = [known[taken.quantity][0] for known in modelled.values()
                     if taken.quantity in known]  # fmt: skip
            both = (model[0], model[1]) if len(model) == len(found) else None
            yield row_of(script.name, taken, after[key], taken.quantity, modelled=both)


def counted(script: Script, built: Mapping[str, Path], step: Step) -> tuple[int, list[Row]]:
    """Count the functions of btrfs that a script runs: how many both run, which not as often."""
    functions = dict[str, list[Counter[str]]]()
    for side, place in built.items():
        with Uml(place / "counting/linux", memory=MEMORY, limit=LIMIT) as kernel:
            for run in range(1, _COUNTED + 1):
                step(f"{script.name}: counting, run {run} of {_COUNTED}, {side}")
                functions.setdefault(side, []).append(counts_of(script, kernel)[0])
    before, after = functions.values()
    return len(before[0].keys() & after[0].keys()), differing(script.name, [before, after], None)


def counts_of(script: Script, kernel: Uml) -> tuple[Counter[str], str]:
    """Count the functions of btrfs that a script runs in a kernel; and what the script says."""
    kept = kernel.new_file()
    with _blank(kernel, script) as sources:
        said = kernel.call(count_script, script.command, sources, kernel.top, script.mounts,
                           str(kept))  # fmt: skip
    return gcov.counts(kernel.binary, kept).functions, said


def in_the_model(
    script: Script, behaviours: Mapping[str, str], machine: Machine, step: Step
) -> dict[str, dict[str, tuple[float, ...]]]:
    """Run a script on the model of both kernels: the numbers that it says there.

    Raises
    ------
    BtrfsModelError
        With what the model does not know.
    """
    found = {}
    for side, behaviour in behaviours.items():
        step(f"{script.name}: the model, {side}")
        try:
            result = run_in_the_model(script.text, behaviour=behaviour, machine=machine)
        except (ShellError, ShellSyntaxError) as error:
            raise BtrfsModelError(f"{script.name}: {error}") from error
        said = result.output.decode(errors="replace")
        result.close()
        found[side] = {taken.quantity: tuple(taken.values) for taken in numbers(said)}
    return found


def numbers(text: str) -> Iterator[Taken]:
    """Find the numbers in what a script says; lines that differ in nothing else are of one kind."""
    seen: dict[str, int] = {}
    for line in text.splitlines():
        words = _NUMBER.sub("#", line).strip()
        if "#" not in words:
            continue
        seen[words] = seen.get(words, 0) + 1
        for at, value in enumerate(_NUMBER.findall(line), 1):
            place = [*([f"number {at}"] if words.count("#") > 1 else []),
                     *([f"line {seen[words]}"] if seen[words] > 1 else [])]  # fmt: skip
            yield Taken(", ".join([words, *place]), "", values=[float(value)])
