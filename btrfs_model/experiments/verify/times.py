# SPDX-License-Identifier: GPL-2.0-only
"""How long the workloads of the commit messages take in kernels at hand.

Kernels take turns, so that what else the machine does meets all of them. All send, map and receive
the same image, which the model builds; the directory that is logged is made by each of them.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from btrfs_model.behaviour import Behaviour, version
from btrfs_model.experiments.commits import load as load_message
from btrfs_model.experiments.workloads import Case, Input, Step, Workload, load, log_dir
from btrfs_model.experiments.workloads.fiemap_shared_build import FILE
from btrfs_model.experiments.workloads.knobs import NOT_TURNED
from btrfs_model.experiments.workloads.timed import SECONDS
from btrfs_model.kernels import timings
from btrfs_model.kernels.choice import start
from btrfs_model.kernels.native import Native
from btrfs_model.kernels.session import SHM, Kernel, has_room
from btrfs_model.kernels.timings import Timing
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.patches import Patch
from btrfs_model.questions.send.ioctl import send
from btrfs_model.stream.reader import read_stream

_MEMORY: Final = 4 << 30
_ROOM: Final = 8 << 30
_TARGET: Final = 3 << 30
"""Bytes of the filesystem that is received into."""


@dataclass
class Taken:
    """What runs of a part of a workload came to.

    Attributes
    ----------
    quantity, unit : str
        As of :class:`btrfs_model.experiments.workloads.Figure`.
    case : mapping
        What it depends on.
    values : list of float
        Of each run.
    """

    quantity: str
    unit: str
    case: Case = field(default_factory=dict)
    values: list[float] = field(default_factory=list)

    @property
    def key(self) -> tuple[object, ...]:
        """What is the same in another kernel."""
        return self.quantity, *sorted(self.case.items())


Measure = Callable[[Kernel, Input, Path], list[Taken]]
"""Carries a workload out in a kernel once, on the image of an input."""


def _times(quantity: str, case: Case, timing: Timing) -> list[Taken]:
    """Return the times by the wall and of the processor."""
    return [Taken(quantity, "ms", case, list(timing.wall_ms)),
            Taken(f"{quantity} of the processor", "ms", case, list(timing.cpu_ms))]  # fmt: skip


def _send_utimes(kernel: Kernel, source: Input, image: Path) -> list[Taken]:
    case = {"files": source.parameters["files"]}
    took = timings.send(kernel, image, "snap2", "snap1", runs=1)
    return [*_times("time", case, took), Taken("stream size", "bytes", case, [took.amount])]


def _send_readahead(kernel: Kernel, source: Input, image: Path) -> list[Taken]:
    took = timings.send(kernel, image, "snap1", runs=1, cold=True)
    return _times("send time", {"device": "memory"}, took)


def _fiemap_shared(kernel: Kernel, source: Input, image: Path) -> list[Taken]:
    cases: list[tuple[Case, bool]] = [
        ({"cache": "cold", "device": "memory"}, True), ({"cache": "cached"}, False),
    ]  # fmt: skip
    return [
        one
        for case, cold in cases
        for one in _times("time", case, timings.fiemap(kernel, image, FILE, runs=1, cold=cold))
    ]


def _log_dir(kernel: Kernel, source: Input, image: Path) -> list[Taken]:
    files = source.parameters["files"]
    deletes = log_dir.sizes(source)[files]
    names = [f"file_{number}" for number in range(1, files + 1)]
    calls: list[list[Any]] = [
        ["mkdir", log_dir.DIRECTORY], ["create_files", log_dir.DIRECTORY, names],
        ["fsync", log_dir.DIRECTORY], ["sync"],
        ["unlink_files", log_dir.DIRECTORY, names[:: files // deletes]],
        ["fsync", log_dir.DIRECTORY],
    ]  # fmt: skip
    taken = timings.steps(kernel, calls, size=log_dir.device_bytes(files), runs=1)
    fsyncs = [one for (name, *_), one in zip(calls, taken, strict=True) if name == "fsync"]
    return [
        one
        for which, timing in zip(log_dir.FSYNCS, fsyncs, strict=True)
        for one in _times("time", {"files": files, "deletes": deletes, "fsync": which}, timing)
    ]


def _send_truncate(kernel: Kernel, source: Input, image: Path) -> list[Taken]:
    """Send, and receive what was sent."""
    return _receive(kernel, timings.stream(kernel, image, source.subvolume))


def _receive(kernel: Kernel, data: bytes) -> list[Taken]:
    stream = kernel.new_file()
    stream.write_bytes(data)
    kinds = Counter(one.name for one in read_stream(stream))
    took = timings.receive(kernel, stream, size=_TARGET, runs=1)
    stream.unlink()
    return [
        *_times("receive time", {}, took),
        Taken("stream size", "bytes", {}, [len(data)]),
        Taken("commands", "commands", {}, [kinds.total()]),
        Taken("command truncate", "commands", {}, [kinds["truncate"]]),
    ]  # fmt: skip


MEASURES: Final[Mapping[str, Measure]] = {
    "send-truncate": _send_truncate,
    "send-utimes": _send_utimes,
    "send-readahead": _send_readahead,
    "fiemap-shared": _fiemap_shared,
    "log-dir": _log_dir,
}
"""How each workload is carried out."""


@contextmanager
def _image_of(workload: Workload, source: Input, step: Step) -> Iterator[Path]:
    """Build the image of an input, in memory where there is room."""
    memory = str(SHM) if has_room(SHM, _ROOM) else None
    with TemporaryDirectory(prefix="workload-", dir=memory) as folder:
        image = Path(folder) / workload.name
        if workload.keeps:  # else each kernel makes what it changes
            with workload.build(source, NOT_TURNED, step) as fs:
                assert isinstance(fs, WritableFilesystem)
                fs.save(image)
        yield image


def in_turn(
    workload: Workload, source: Input, kernels: Mapping[str, Kernel], runs: int, step: Step
) -> dict[str, list[Taken]]:
    """Carry a workload out in kernels, which take turns.

    Parameters
    ----------
    workload : Workload
        One of :data:`MEASURES`.
    source : Input
        On what; it is built.
    kernels : mapping
        By name.
    runs : int
        How often.

    Returns
    -------
    dict
        What it came to in each kernel.
    """
    found: dict[str, dict[tuple[object, ...], Taken]] = {name: {} for name in kernels}
    with _image_of(workload, source, step) as image:
        for run in range(1, runs + 1):
            for name, kernel in kernels.items():
                step(f"{workload.name}: run {run} of {runs}, {name}")
                add_taken(found[name], MEASURES[workload.name](kernel, source, image))
    return {name: list(taken.values()) for name, taken in found.items()}


def add_taken(found: dict[tuple[object, ...], Taken], taken: Iterable[Taken]) -> None:
    """Add runs to those that were taken before."""
    for one in taken:
        if one.key in found:
            found[one.key].values += one.values
        else:
            found[one.key] = one


# --------------------------------------------------------------- for the report of a replay --


def measure(
    which: Sequence[str], names: Sequence[str], scale: float, runs: int, step: Step
) -> dict[str, Any]:
    """Measure workloads at the sizes of their messages, on the sides that kernels stand for.

    A kernel with the commit stands for the side after it, one without for that before. Of several
    for one side it is that whose release is nearest to the commit's. Guests and the machine's own
    kernel are not compared with each other. What is received depends on the stream alone, so each
    side's stream, which the model sends, is received by one kernel, the machine's own if it is
    among them: system calls are costly in guests.

    Parameters
    ----------
    which : sequence of str
        Kernels, as :func:`btrfs_model.kernels.choice.start` takes them.
    names : sequence of str
        Of workloads.
    scale : float
        Sizes up to this share of the message's largest.
    runs : int
        How often each.
    step : callable
        Told what is done.

    Returns
    -------
    dict
        What :func:`btrfs_model.experiments.times.use_measured` takes.
    """
    rows: list[dict[str, Any]] = []
    sources: dict[str, dict[str, str]] = {}
    with ExitStack() as stack:
        kernels = [stack.enter_context(start(name, memory=_MEMORY)) for name in which]
        for name in names:
            workload = load(name)
            for source in _sizes(workload, scale):
                sides, found = _measured_sides(workload, source, kernels, runs, step)
                for side, taken in found.items():
                    kernel = sides[side]
                    sources.setdefault(name, {})[side] = _words(kernel)
                    rows += [
                        _row(workload, source, side, kernel, one)
                        for one in taken
                        if one.unit in SECONDS
                    ]
    return {"sources": sources, "rows": rows}


def _measured_sides(
    workload: Workload, source: Input, kernels: Sequence[Kernel], runs: int, step: Step
) -> tuple[dict[str, Kernel], dict[str, list[Taken]]]:
    if workload.name == "send-truncate":
        native_first = sorted(kernels, key=lambda kernel: not isinstance(kernel, Native))
        return _received(workload, source, native_first[0], runs, step)
    sides = _sides(workload, kernels)
    return sides, in_turn(workload, source, sides, runs, step)


def _sides(workload: Workload, kernels: Sequence[Kernel]) -> dict[str, Kernel]:
    """Return the kernels that stand for the sides before and after a commit, of one world."""
    toggle = workload.toggles[0]
    found: list[dict[str, Kernel]] = []
    for is_native in (False, True):
        of_kind = [one for one in kernels if isinstance(one, Native) == is_native]
        by_age = sorted(of_kind, key=lambda kernel: version(kernel.preset))
        has = {kernel: toggle in Behaviour.parse(kernel.preset) for kernel in by_age}
        parts = {
            "before": [kernel for kernel in by_age if not has[kernel]][-1:],
            "after": [kernel for kernel in by_age if has[kernel]][:1],
        }
        found.append({side: chosen[0] for side, chosen in parts.items() if chosen})
    return max(found, key=len)


def _received(
    workload: Workload, source: Input, kernel: Kernel, runs: int, step: Step
) -> tuple[dict[str, Kernel], dict[str, list[Taken]]]:
    """Let a kernel receive what the model sends on each side whose receiver it can be."""
    streams = {}
    fixed = Patch.TRUNCATE_SAME_SIZE in Behaviour.parse(kernel.preset)
    with workload.build(source, NOT_TURNED, step) as fs:
        for side in workload.compared:
            truncates = Patch.SEND_SKIP_TRUNCATE not in side.toggles
            if not truncates or (Patch.TRUNCATE_SAME_SIZE in side.toggles) == fixed:
                streams[side.name] = send(fs, source.subvolume, behaviour=side.behaviour).data
    found: dict[str, dict[tuple[object, ...], Taken]] = {name: {} for name in streams}
    for run in range(1, runs + 1):
        for name, data in streams.items():
            step(f"{workload.name}: run {run} of {runs}, {name}")
            assert data is not None
            add_taken(found[name], _receive(kernel, data))
    sides = dict.fromkeys(streams, kernel)
    return sides, {name: list(taken.values()) for name, taken in found.items()}


def _sizes(workload: Workload, scale: float) -> list[Input]:
    """Return inputs of the sizes that the message tells times of, up to a scale."""
    full = workload.scaled(1.0).parameters
    size = workload.size if workload.size in full else ""
    told = {one.case.get(size) for one in load_message(workload.name).figures}
    scales = sorted(value / full[size] for value in told if isinstance(value, int))
    chosen = [one for one in scales if one <= scale] or [scale]
    return [workload.scaled(one) for one in chosen]


def _row(
    workload: Workload, source: Input, side: str, kernel: Kernel, one: Taken
) -> dict[str, Any]:
    kind = "native" if isinstance(kernel, Native) else "uml"
    about = {"workload": workload.name, "side": side, **source.parameters, **one.case}
    return {**about, "quantity": one.quantity, **taken(kind, kernel.preset, one.unit, one.values)}


def taken(kind: str, kernel: str, unit: str, values: Sequence[float]) -> dict[str, object]:
    """Say in a row what several runs took: the median, the least, the most, how many.

    `kind` and `kernel` are those of a machine: ``uml`` or ``native``, and a behaviour.
    """
    return {
        "kind": kind,
        "kernel": kernel,
        "unit": unit,
        "value": round(statistics.median(values), 6),
        "min": round(min(values), 6),
        "max": round(max(values), 6),
        "runs": len(values),
    }


def _words(kernel: Kernel) -> str:
    world = "this machine" if isinstance(kernel, Native) else "User-Mode Linux on this machine"
    return f"Linux {kernel.release}, {world}, images in memory"
