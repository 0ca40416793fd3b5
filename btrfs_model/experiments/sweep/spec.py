# SPDX-License-Identifier: GPL-2.0-only
"""Sweeps as files: ``SPEC.toml``.

::

    workload = "send-utimes"            # or scenario = "run.json", or function = "module:name",
                                        # or script = "the.sh" with its commit or toggles
    sampler = "grid"
    quantities = ["time"]

    [knobs]
    files = [200, 400]
    dir_utimes_cache = { from = 1, to = 512, log = true }

    [small.knobs]                       # what is other with --small
    files = 60

    [conclusions."the patch saves at least 20 %"]
    quantity = "time"
    saves = 0.2
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, cast

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.nearest import did_you_mean
from btrfs_model.cost.device import read_toml
from btrfs_model.experiments.sweep.plan import Plan, plan
from btrfs_model.experiments.sweep.sensitivity import Conclusion
from btrfs_model.experiments.sweep.target import Target, target_of
from btrfs_model.experiments.workloads.own import workload

_TARGETS: Final = ("workload", "function", "scenario", "script")
_OF_SCRIPTS: Final[tuple[str, ...]] = ("commit", "toggles")
_KINDS: Final[dict[str, Any]] = {
    "title": str, "workload": (str, list), "function": str, "scenario": str, "script": str,
    "commit": str, "toggles": list, "sampler": str,
    "samples": int, "seed": int, "quantities": list, "knobs": dict, "small": dict,
    "conclusions": dict,
}  # fmt: skip
_SMALL: Final = ("samples", "knobs")


@dataclass(slots=True)
class Spec:
    """What a file says; the arguments of :func:`btrfs_model.experiments.sweep.api.sweep`."""

    path: str
    target: Target
    knobs: dict[str, Any]
    sampler: str = "grid"
    samples: int | None = None
    seed: int = 0
    quantities: list[str] | None = None
    title: str = ""
    conclusions: list[Conclusion] = field(default_factory=list)

    def plan(self, knobs: Mapping[str, Any] | None = None, sampler: str | None = None) -> Plan:
        """Plan its cells, with some knobs, or the sampler, in place of its own."""
        try:
            return plan(
                self.target, {**self.knobs, **(knobs or {})}, sampler or self.sampler,
                self.samples, self.seed,
            )  # fmt: skip
        except BtrfsModelError as error:
            raise BtrfsModelError(f"{self.path}: {error}") from None


def load(path: str | os.PathLike[str], *, small: bool = False) -> Spec:
    """Read a file.

    Parameters
    ----------
    path : path
        Where it is; what it names is looked for beside it.
    small : bool
        Take what its table ``small`` has in place of the rest.

    Raises
    ------
    BtrfsModelError
        For what is no sweep: with the file and the key.
    OSError
        When it cannot be read.
    """
    name = os.fspath(path)
    found = read_toml(Path(name))
    _check(name, found, _KINDS)
    if small:
        other = found.get("small", {})
        _check(f"{name}: small", other, {key: _KINDS[key] for key in _SMALL})
        found |= {**other, "knobs": {**found.get("knobs", {}), **other.get("knobs", {})}}
    for key in ("workload", "quantities", "toggles"):
        for one in found.get(key, ()):
            if not isinstance(one, str):
                raise BtrfsModelError(f"{name}: {key}: {one!r} is no text")
    if not found.get("knobs"):
        raise BtrfsModelError(f"{name}: knobs: there is none")
    given = [one for one in _TARGETS if one in found]
    if len(given) != 1:
        raise BtrfsModelError(f"{name}: it has one of {', '.join(_TARGETS)}, not {len(given)}")
    sides: dict[str, Any] = {one: found[one] for one in _OF_SCRIPTS if one in found}
    if sides and given != ["script"]:
        raise BtrfsModelError(f"{name}: {', '.join(sides)}: of a script alone")
    try:
        target = _target(given[0], found[given[0]], Path(name).parent, sides)
        conclusions = [Conclusion.of(*one) for one in found.get("conclusions", {}).items()]
    except BtrfsModelError as error:
        raise BtrfsModelError(f"{name}: {error}") from None
    rest = ("sampler", "samples", "seed", "quantities", "title")
    return Spec(
        name, target, found["knobs"], **{one: found[one] for one in rest if one in found},
        conclusions=conclusions,
    )  # fmt: skip


def _check(place: str, found: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    for key, value in found.items():
        if key not in kinds:
            there = ", ".join(kinds)
            raise BtrfsModelError(
                f"{place}: no key {key!r}; there is {there}{did_you_mean(key, kinds)}"
            )
        if not isinstance(value, kinds[key]) or isinstance(value, bool):
            raise BtrfsModelError(f"{place}: {key} is {value!r}, which is of another kind")


def _target(kind: str, named: Any, folder: Path, sides: Mapping[str, Any]) -> Target:
    if kind == "workload":
        return target_of(named)
    if kind == "script":
        return target_of(workload(named, script=folder / named, **sides))
    if kind == "scenario":
        return target_of(os.fspath(folder / named))
    return target_of(_function(named, folder.absolute()))


def _function(named: str, folder: Path) -> Callable[..., Any]:
    """Import a function from a module beside a file: from there, and from nowhere else."""
    module, _, name = named.partition(":")
    if not (module.isidentifier() and name.isidentifier()):
        raise BtrfsModelError(f"function is {named!r}, not 'module:name'")
    there = [folder / f"{module}.py", folder / module / "__init__.py"]
    if not any(one.is_file() for one in there):
        raise BtrfsModelError(f"function {named!r}: there is no {module}.py beside the file")
    # behind all others, for this process and for those that measure: nothing there stands in for
    # a module that another one asks for
    if (place := os.fspath(folder)) not in sys.path:
        sys.path.append(place)
    invalidate_caches()
    found = find_spec(module)
    origin = None if found is None else found.origin
    if origin is None or not any(one.exists() and one.samefile(origin) for one in there):
        raise BtrfsModelError(f"function {named!r}: another module has this name: {origin}")
    try:
        function = getattr(import_module(module), name)
    except Exception as error:  # it is the user's code
        raise BtrfsModelError(f"function {named!r}: {type(error).__name__}: {error}") from None
    if not callable(function):
        raise BtrfsModelError(f"function {named!r}: it is no function")
    return cast("Callable[..., Any]", function)
