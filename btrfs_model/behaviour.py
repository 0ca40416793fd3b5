# SPDX-License-Identifier: GPL-2.0-only
"""What a kernel does, as a set of toggles.

A *behaviour* is a set of toggles; a *preset* names the behaviour of a kernel::

    >>> behaviour = Behaviour.parse("v6.12 - send-utimes-cache")
    >>> Patch.SEND_UTIMES_CACHE in behaviour
    False

A plain release (``v6.12``) has the toggles of all commits up to it. A stable kernel (``v6.12.101``)
has those backported to it as well. A commit (``3e49363be633``) stands for the main line right after
it, and with ``^`` right before it::

    >>> (Behaviour.parse("3e49363b").patches ^ Behaviour.parse("3e49363b^").patches)
    frozenset({<Patch.SEND_UTIMES_CACHE: 'send-utimes-cache'>})
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from functools import cache, cached_property
from typing import TYPE_CHECKING, Final

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import BehaviourWarning, UnknownBehaviourError, UnknownNameError
from btrfs_model.base.nearest import did_you_mean
from btrfs_model.base.tables import html_table
from btrfs_model.patches import KERNEL, Patch

if TYPE_CHECKING:
    import pandas as pd

_BY_SLUG: Final = {str(patch): patch for patch in Patch}
_BITS: Final = {
    patch: 1 << bit for bit, patch in enumerate(one for one in Patch if one.asked == "C")
}

_COMMIT: Final = re.compile(r"[0-9a-fA-F]{4,40}\^?")
_DIGITS: Final = 8
_SHOWN: Final = 3

JUDGED: Final = ("v5.10.46", "v5.10.223", "v6.1.176", "v6.1.192", "v6.12.101", "v6.18.44",
                 "v7.2.7")  # fmt: skip
"""Kernels beside which the model was put, live or by what they recorded: of what Debian and the
stable trees made of a release. What any other preset does follows from the table of toggles
alone."""

_RELEASES: Final = (
    *(f"v4.{minor}" for minor in range(16, 21)),
    *(f"v5.{minor}" for minor in range(20)),
    *(f"v6.{minor}" for minor in range(20)),
    *(f"v7.{minor}" for minor in range(4)),
)


def version(name: str) -> tuple[int, ...]:
    """Return the numbers of a preset, or of a kernel's release (``6.2.0-39-generic``)."""
    numbers = re.match(r"v?([\d.]*\d)", name)
    assert numbers is not None
    return tuple(map(int, numbers[1].split(".")))


PRESETS: Final[tuple[str, ...]] = tuple(sorted((*_RELEASES, *JUDGED), key=version))
"""Kernels by name: every release, and the stable ones of which records exist."""


def preset_of(release: str) -> str:
    """Return the newest preset that is not newer than a kernel, by its release.

    >>> preset_of("6.12.101"), preset_of("6.2.0-39-generic")
    ('v6.12.101', 'v6.2')
    """
    return [name for name in PRESETS if version(name) <= version(release)][-1]


def standing(name: str) -> str:
    """Say how far a preset was compared with kernels.

    >>> standing("v6.5")
    'stands between v6.1.192 and v6.12.101, which were compared with kernels'
    >>> standing("v5.4")
    'nothing before v5.10.46 was compared with a kernel'
    """
    if name in JUDGED:
        return "compared with this kernel"
    older = [one for one in JUDGED if version(one) < version(name)]
    newer = [one for one in JUDGED if version(one) > version(name)]
    if not older and version(newer[0])[:2] == version(name):
        return f"its stable kernel {newer[0]} was compared with a real one"
    if not older:
        return f"nothing before {newer[0]} was compared with a kernel"
    if not newer:
        return f"nothing after {older[-1]} was compared with a kernel"
    return f"stands between {older[-1]} and {newer[0]}, which were compared with kernels"


def sides_judged(patch: Patch) -> str:
    """Say which sides of a toggle kernels judged: ``"both"``, ``"with"``, ``"without"``."""
    there = {patch in _preset(name) for name in JUDGED}
    return "both" if len(there) > 1 else "with" if True in there else "without"


@cache
def _preset(name: str) -> frozenset[Patch]:
    numbers = version(name)
    return frozenset(
        patch
        for patch in Patch
        if (patch.release and version(patch.release) <= numbers[:2])
        or any(one[:2] == numbers[:2] and one <= numbers for one in map(version, patch.backports))
    )


@cache
def _at_commit(name: str) -> frozenset[Patch]:
    """Return the toggles of the main line right after a commit, with ``^`` right before it.

    Raises
    ------
    UnknownBehaviourError
        For a commit that no row of the table has, or that several have.
    """
    wanted, before = name.removesuffix("^").lower(), name.endswith("^")
    rows = [patch for patch in Patch if patch.release]
    found = [at for at, patch in enumerate(rows)
             if patch.commit.startswith(wanted[: len(patch.commit)])]  # fmt: skip
    ids = list(dict.fromkeys(rows[at].commit for at in found))
    if len(ids) != 1 or len(wanted) < _DIGITS:
        raise UnknownBehaviourError(_no_commit(wanted, ids))
    return frozenset(rows[: found[0] if before else found[-1] + 1])


def _no_commit(wanted: str, ids: list[str]) -> str:
    """Say why an id stands for no state of the main line."""
    if len(wanted) < _DIGITS:
        there = f"; there is {', '.join(ids[:_SHOWN])}" if ids else ""
        return f"commit '{wanted}': {_DIGITS} digits or more name a commit{there}"
    if ids:
        return f"commit '{wanted}' is ambiguous: {', '.join(ids)}"
    known = {patch.commit[: len(wanted)]: patch for patch in Patch if patch.release}
    near = [known[one] for one in get_close_matches(wanted[:12], known, _SHOWN)]
    said = "; near is " + ", ".join(f"{one.commit} ({one})" for one in near) if near else ""
    return f"unknown commit '{wanted}': no release in `btrfs-model patches` has it{said}"


@cache
def _base(name: str) -> frozenset[Patch]:
    """Return the toggles of a preset or commit; none for what is neither."""
    if name in PRESETS:
        return _preset(name)
    return _at_commit(name) if _COMMIT.fullmatch(name) else frozenset()


def _without_spaces(name: str) -> str:
    """Return the end of an error about ``v6.12+toggle``; empty for what is no such thing."""
    kernel, sign, slug = [*re.split(r"([+-])", name, maxsplit=1), "", ""][:3]
    if kernel.strip() not in PRESETS:
        return ""
    return f"; a sign has spaces around it: '{kernel.strip()} {sign} {slug.strip()}'"


class Behaviour:
    """What a kernel does: a set of toggles.

    Parameters
    ----------
    patches : frozenset of Patch
        The toggles that are on.
    text : str
        How it was asked for; shown in reports.
    """

    def __init__(self, patches: frozenset[Patch], text: str) -> None:
        self.patches = patches
        self.text = text

    @classmethod
    @checked
    def parse(cls, text: str | Behaviour) -> Behaviour:
        """Read ``KERNEL [+ TOGGLE | - TOGGLE]...``, e.g. ``v6.12 - send-utimes-cache``.

        A kernel is a preset, or a commit of the table by 8 digits or more: the main line right
        after it, and with ``^`` right before it.

        Raises
        ------
        UnknownBehaviourError
            For a preset, commit or toggle that is not in the table, or an id that is ambiguous.

        Warns
        -----
        BehaviourWarning
            For a toggle that is added and was there already, or taken away and was not there.
        """
        if isinstance(text, Behaviour):
            return text
        if text in PRESETS:
            return _behaviour(text)
        # a slug has dashes in it, so an operator is a sign with white space around it
        name, *rest = re.split(r"\s+([+-])\s*", text.strip())
        if name not in PRESETS and not _COMMIT.fullmatch(name):
            raise UnknownBehaviourError(
                f"unknown kernel '{name}' in behaviour '{text}': one of {', '.join(PRESETS)}"
                f"{_without_spaces(name) or did_you_mean(name, PRESETS)}"
            )
        patches = set(_base(name))
        for sign, slug in zip(rest[::2], rest[1::2], strict=True):
            patch = _BY_SLUG.get(slug)
            if patch is None:
                raise UnknownBehaviourError(
                    f"unknown toggle '{slug}' in behaviour '{text}'{did_you_mean(slug, Patch)}"
                )
            if (patch in patches) == (sign == "+"):
                there = "already has" if sign == "+" else "does not have"
                warnings.warn(
                    f"behaviour '{text}': {name} {there} toggle '{slug}', '{sign} {slug}' changes "
                    "nothing",
                    BehaviourWarning,
                    stacklevel=3,
                )
            (patches.add if sign == "+" else patches.discard)(patch)
        return cls(frozenset(patches), text.strip())

    @property
    def unjudged(self) -> str:
        """Why no kernel stands behind it, in a clause; empty for what kernels were compared with.

        Between two kernels that were compared, a preset counts as compared.
        """
        name, *_ = self.text.split(maxsplit=1) or [""]
        if _COMMIT.fullmatch(name):
            # as well known as the last release before it
            newest = max((one.release for one in _base(name)), key=version, default="")
            name = f"v{newest}" if newest else PRESETS[0]
        if name not in PRESETS or version(name) >= version(JUDGED[0])[:2]:
            return ""
        return standing(name)

    def __contains__(self, patch: str) -> bool:
        if patch in self.patches:
            return True
        if patch not in _BY_SLUG:
            raise UnknownNameError("toggle", patch, Patch)
        return False

    def __iter__(self) -> Iterator[Patch]:
        return (patch for patch in Patch if patch in self.patches)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Behaviour) and self.patches == other.patches

    def __hash__(self) -> int:
        return hash(self.patches)

    def __repr__(self) -> str:
        return f"Behaviour({self.text!r})"

    def _repr_html_(self) -> str:
        title = f"{self.text}: {len(self.patches)} of {len(Patch)} toggles"
        name, *_ = self.text.split(maxsplit=1) or [""]
        changed = self.patches ^ _base(name)
        rows = [("+" if one in self.patches else "-", one, one.release, one.what)
                for one in Patch if one in changed]  # fmt: skip
        if self.unjudged:
            title = f"{title}; {self.unjudged}"
        return html_table(title, ["", "toggle", "release", "what"], rows, len(rows))

    def __str__(self) -> str:
        return self.text

    @cached_property
    def bits(self) -> int:
        """The toggles as bits for the C kernels: ``1 << enum bm_toggle``."""
        return sum(_BITS.get(patch, 0) for patch in self.patches)


_mounts_by: ContextVar[str | Behaviour] = ContextVar("kernel of mounts", default=KERNEL)


@contextmanager
def mounting_by(behaviour: str | Behaviour) -> Iterator[None]:
    """Let a kernel mount what is mounted inside the ``with`` block, where none is named."""
    token = _mounts_by.set(behaviour)
    try:
        yield
    finally:
        _mounts_by.reset(token)


def mount_kernel(behaviour: str | Behaviour | None) -> Behaviour:
    """Return the kernel that mounts a filesystem: the one that is named, or that of the context."""
    return Behaviour.parse(_mounts_by.get() if behaviour is None else behaviour)


@cache
def _behaviour(name: str) -> Behaviour:
    return Behaviour(_preset(name), name)


def name_ranges(names: Sequence[str], some: Collection[str]) -> str:
    """Name some of several kernels; those that follow each other by the first and the last."""
    found: list[list[str]] = []
    before = ""
    for name in names:
        if name in some and before in some:
            found[-1].append(name)
        elif name in some:
            found.append([name])
        before = name
    return ", ".join(part[0] if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in found)


def table() -> pd.DataFrame:
    """Return the table of toggles.

    Returns
    -------
    pandas.DataFrame
        A row for each toggle: slug, release, backports (stable releases), commit, title, what,
        needs (toggles), asked (by ``"C"``, by ``"Python"`` alone, or ``"nowhere"``, where it is the
        same with and without it), judged (the sides of it that kernels were compared with:
        ``"both"``, ``"with"`` it or ``"without"``).
    """
    import pandas as pd

    columns = [
        "slug",
        "release",
        "backports",
        "commit",
        "title",
        "what",
        "needs",
        "asked",
        "judged",
    ]
    rows = [
        (str(one), one.release, " ".join(one.backports), one.commit, one.subject, one.what,
         " ".join(one.needs), str(one.asked), sides_judged(one))
        for one in Patch
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)
