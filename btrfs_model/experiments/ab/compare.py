# SPDX-License-Identifier: GPL-2.0-only
"""A change of a kernel, measured: the kernels before and after it do the same on the same image.

Both are built by :mod:`btrfs_model.kernels.build` and run as guests, in turns. Beside what they
take stands what the message of the change reports and what the model predicts, where these are
known.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from btrfs_model.base.errors import BtrfsModelError, KernelMissingError
from btrfs_model.base.nearest import did_you_mean
from btrfs_model.behaviour import Behaviour, preset_of, version
from btrfs_model.cost.machine import Machine
from btrfs_model.cost.machine import load as load_machine
from btrfs_model.cost.machine import names as machines
from btrfs_model.cost.prediction import Ratio, ratio
from btrfs_model.experiments.ab.rows import Row, differing, row_of
from btrfs_model.experiments.ab.script import (
    LIMIT,
    MEMORY,
    Script,
    counted,
    in_the_model,
    measured,
    script_of,
)  # fmt: skip
from btrfs_model.experiments.commits import Message, ratio_of
from btrfs_model.experiments.commits import load as load_message
from btrfs_model.experiments.numbers import ratio_text
from btrfs_model.experiments.report.verdicts import case as case_of
from btrfs_model.experiments.verify.counts import EXCEPTIONS, Counting
from btrfs_model.experiments.verify.times import Taken, in_turn
from btrfs_model.experiments.workloads import NAMES, Input, Outcome, Side, Step, Workload, load
from btrfs_model.experiments.workloads.knobs import Knobs
from btrfs_model.experiments.workloads.timed import SECONDS
from btrfs_model.kernels.build import build_both, shelf
from btrfs_model.kernels.change import Change, change_of
from btrfs_model.kernels.session import Kernel
from btrfs_model.kernels.uml import Uml
from btrfs_model.patches import Patch

SIDES: Final = ("before", "after")
_SCALES: Final = {"send-truncate": 0.1, "send-utimes": 1 / 6, "send-readahead": 0.02,
                  "fiemap-shared": 0.1, "log-dir": 0.02}  # fmt: skip
"""Sizes, of those of the messages, at which a run takes a second or so."""
_WARM: Final = 0.0005
_COUNTING: Final = 1 << 30
_SIZES: Final = ("files", "deletes")


@dataclass
class Comparison:
    """What came of it.

    Attributes
    ----------
    change : Change
        The change.
    releases : list of str
        Of the kernels.
    runs : int
        How often each did the same.
    toggles : list of Patch
        What of the change the model knows.
    messages : dict
        What is known of its messages, by workload.
    settings : dict
        Of each workload, for people.
    rows : list of Row
        What was measured.
    counts : list of Row
        Functions that both kernels called, but not as often.
    agreed : dict
        Of each workload: counts that were compared with the model's, and those that are the same.
    notes : list of str
        What else there is to say of it.
    """

    change: Change
    releases: list[str]
    runs: int
    toggles: list[Patch]
    messages: dict[str, Message]
    settings: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    counts: list[Row] = field(default_factory=list)
    agreed: dict[str, tuple[int, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """What the change is called."""
        return self.change.titles[-1] if self.change.titles else self.change.commit or "a change"

    @property
    def behaviours(self) -> dict[str, str]:
        """What the kernels before and after do, by the model; nothing where it does not know."""
        return _behaviours(self.releases[0], self.toggles)


def compare(
    tree: Path,
    name: str,
    workloads: Sequence[str],
    script: Path | None,
    runs: int,
    scale: float | None,
    step: Step,
) -> Comparison:
    """Build the kernels before and after a change, and compare them.

    Parameters
    ----------
    tree : Path
        Of a kernel.
    name : str
        A change, as :func:`btrfs_model.kernels.change.change_of` takes it.
    workloads : sequence of str
        Names; without any and without a script that whose message is the change's, or all.
    script : Path, optional
        A script that both run: its interpreter (bash where it names none) reads it before
        anything is built. See :mod:`btrfs_model.kernels.inside.script`.
    runs : int
        How often.
    scale : float, optional
        Of workloads, relative to their messages.
    step : callable
        Told what is done.

    Raises
    ------
    KernelMissingError, KernelFailedError
        When there is no such change, or a kernel cannot be built or run.
    """
    change = change_of(tree, name)
    with TemporaryDirectory() as temporary:
        chosen_script = _checked(workloads, script, Path(temporary))
        return _compare(tree, change, workloads, chosen_script, runs, scale, step)


def _compare(
    tree: Path, change: Change, workloads: Sequence[str], script: Script | None, runs: int,
    scale: float | None, step: Step,
) -> Comparison:  # fmt: skip
    built = dict(zip(SIDES, build_both(tree, change, shelf(), step), strict=True))
    messages = {one: load_message(one) for one in NAMES if _is_of(load_message(one), change)}
    toggles = [patch for patch in Patch
               if patch.subject in change.titles or _is_commit(patch.commit, change)]  # fmt: skip
    chosen = list(workloads) or ([] if script else [*messages] or list(NAMES))
    found = Comparison(change, [], runs, toggles, messages)
    with ExitStack() as stack:
        kernels = {
            side: stack.enter_context(Uml(place / "timed/linux", memory=MEMORY, limit=LIMIT))
            for side, place in built.items()
        }
        for kernel in kernels.values():
            kernel.start()
            found.releases.append(kernel.release)
        for workload in chosen:
            found.rows += _workload(found, load(workload), kernels, scale, step)
        if script:
            model = _script_modelled(found, script, step)
            found.rows += measured(script, kernels, runs, step, model)
    for workload in chosen:
        found.counts += _counted(found, workload, built, step)
    if script:
        number, rows = counted(script, built, step)
        found.counts += rows
        which = f"{len(rows)} of them" if rows else "none"
        found.notes.append(f"{script.name}: {number:,} functions of btrfs run before and after; "
                           f"{which} more often on one side.")  # fmt: skip
    return found


def _checked(workloads: Sequence[str], script: Path | None, temporary: Path) -> Script | None:
    """Look at all that is asked for before anything is built; return the script."""
    for name in workloads:
        if name not in NAMES:
            near = did_you_mean(name, NAMES)
            raise BtrfsModelError(f"no workload {name!r} of kernels: {', '.join(NAMES)}{near}")
    if shutil.which("gcov") is None:
        raise KernelMissingError("gcov is not here (Debian: package gcc)")
    return None if script is None else script_of(script, temporary)


def _script_modelled(
    found: Comparison, script: Script, step: Step
) -> dict[str, dict[str, tuple[float, ...]]]:
    """Return the numbers that a script says on the model, where it knows change and script."""
    if not found.toggles:
        return {}
    if not script.is_shell:
        found.notes.append(f"{script.name}: the model runs shell scripts alone.")
        return {}
    try:
        return in_the_model(script, found.behaviours, _machine(found.releases[0]), step)
    except BtrfsModelError as error:
        found.notes.append(f"The model does not run it: {error}.")
        return {}


def _is_commit(commit: str, change: Change) -> bool:
    return bool(commit) and change.commit.startswith(commit)


def _is_of(message: Message, change: Change) -> bool:
    return message.title in change.titles or _is_commit(message.commit, change)


def _behaviours(release: str, toggles: Sequence[Patch]) -> dict[str, str]:
    if not toggles:
        return {}
    preset = preset_of(release)
    known = Behaviour.parse(preset)
    without = "".join(f" - {one}" for one in toggles if one in known)
    added = "".join(f" + {one}" for one in toggles if one not in known)
    return {"before": preset + without, "after": preset + added}


def _workload(
    found: Comparison, workload: Workload, kernels: Mapping[str, Kernel], scale: float | None,
    step: Step,
) -> Iterator[Row]:  # fmt: skip
    """Measure a workload, and predict it where the change is known."""
    source = workload.scaled(scale or _SCALES[workload.name])
    found.settings[workload.name] = ", ".join(
        f"{value:,} {name}" for name, value in source.parameters.items()
    )
    modelled: dict[str, Outcome] = {}
    machine = _machine(found.releases[0])
    for side, behaviour in found.behaviours.items():
        step(f"{workload.name}: the model, {side}")
        modelled[side] = _model(workload, source, Side(side, behaviour), machine)
    # programs and modules are loaded before anything is timed
    in_turn(workload, workload.scaled(_WARM), kernels, 1, lambda _: None)
    taken = in_turn(workload, source, kernels, found.runs, step)
    for before, after in zip(*(taken[side] for side in SIDES), strict=True):
        known: dict[str, Any] = {}
        if before.unit in SECONDS:
            known["predicted"] = _predicted(modelled, before, machine)
        else:
            known["modelled"] = _figures(modelled, before)
        if workload.name in found.messages:
            known["reported"] = _reported(found, workload, before)
        case = [
            str(value) if isinstance(value, str) else f"{name} {value:,}"
            for name, value in before.case.items()
            if name not in source.parameters
        ]
        what = ", ".join([before.quantity, *case])
        yield row_of(workload.name, before, after, what, **known)


def _model(workload: Workload, source: Input, side: Side, machine: Machine) -> Outcome:
    """Do the same in the model, on a device in memory where there is one."""
    knobs = Knobs(None if workload.name == "send-utimes" else "memory", machine=machine)
    with workload.build(source, knobs) as fs:
        return workload.measure(fs, source, side, knobs)


def _machine(release: str) -> Machine:
    """Return the machine that stands for a guest: the newest that is not newer."""
    guests = sorted((load_machine(name) for name in machines() if name.startswith("uml-")),
                    key=lambda one: version(one.kernel))  # fmt: skip
    return ([one for one in guests if version(one.kernel) <= version(release)] or guests)[-1]


def _predicted(modelled: Mapping[str, Outcome], taken: Taken, machine: Machine) -> Ratio | None:
    times = []
    for outcome in modelled.values():
        for timed in outcome.timed:
            alike = all(timed.case.get(key, value) == value for key, value in taken.case.items())
            if timed.quantity == taken.quantity and alike:
                times.append(timed.on(machine))
                break
    before, after = times if len(times) == len(SIDES) else (None, None)
    return ratio(before, after) if before and after else None


def _figures(modelled: Mapping[str, Outcome], taken: Taken) -> tuple[float, float] | None:
    figures = [outcome.find(side, taken.quantity, **taken.case)
               for side, outcome in modelled.items()]  # fmt: skip
    values = [figure.modelled if figure else 0.0 for figure in figures]
    if not any(figures) or None in values:
        return None
    return float(values[0] or 0), float(values[1] or 0)


def _reported(found: Comparison, workload: Workload, taken: Taken) -> str:
    """Say what the message of a change reports for the same, at its own size."""
    message = found.messages[workload.name]
    first, second = (
        _side_of(found, workload, behaviour) for behaviour in found.behaviours.values()
    )
    pairs = [
        (before, after)
        for before in message.figures
        for after in message.figures
        if (before.side, after.side) == (first, second)
        and before.case == after.case
        and before.quantity == after.quantity == taken.quantity
        and all(taken.case.get(name, value) == value for name, value in after.case.items()
                if name not in _SIZES)
    ]  # fmt: skip
    if not pairs:
        return ""
    before, after = next((pair for pair in pairs if pair[1].is_headline), pairs[0])
    return f"{ratio_text(ratio_of(before, after))}, {case_of(message, after)}"


def _side_of(found: Comparison, workload: Workload, behaviour: str) -> str:
    """Name the side of a message that is most like a kernel: in the change, then in the rest."""
    kernel = Behaviour.parse(behaviour)

    def alike(side: Side) -> tuple[int, int]:
        agreed = [(patch in kernel) == (patch in side.toggles) for patch in workload.toggles]
        own = [is_same for is_same, patch in zip(agreed, workload.toggles, strict=True)
               if patch in found.toggles]  # fmt: skip
        return sum(own), sum(agreed)

    told = {figure.side for figure in found.messages[workload.name].figures}
    return max((side for side in workload.compared if side.name in told), key=alike).name


# ---------------------------------------------------------------------------------- counted --


def _counted(found: Comparison, workload: str, built: Mapping[str, Path], step: Step) -> list[Row]:
    """Count the functions of btrfs, and tell those whose counts the change changes."""
    functions, work = [], []
    for side, place in built.items():
        step(f"{workload}: counting, {side}")
        with Uml(place / "counting/linux", memory=_COUNTING) as kernel:
            counting = Counting(kernel, found.behaviours.get(side, ""))
            counted = counting.counted(workload)
            functions.append(counted[0])
            work.append(counted[1])
    if found.toggles:
        both = [(functions[at].get(name), count) for at in range(len(SIDES))
                for name, count in work[at].items() if name not in EXCEPTIONS]  # fmt: skip
        known = [(theirs, ours) for theirs, ours in both if theirs is not None]
        found.agreed[workload] = len(known), sum(theirs == ours for theirs, ours in known)
    sides = [[one] for one in functions]
    return differing(workload, sides, work if found.toggles else None)
