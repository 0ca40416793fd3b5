# SPDX-License-Identifier: GPL-2.0-only
"""What a kernel does, as a set of toggles.

A *behaviour* is a set of toggles; a *preset* names the behaviour of a kernel::

    >>> behaviour = Behaviour.parse("v6.12 - send-utimes-cache")
    >>> Patch.SEND_UTIMES_CACHE in behaviour
    False

A plain release (``v6.12``) has the toggles of all commits up to it. A stable kernel (``v6.12.101``)
has those backported to it as well.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from functools import cache, cached_property
from typing import TYPE_CHECKING, Final

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import BehaviourWarning, UnknownBehaviourError, UnknownNameError
from btrfs_model.base.nearest import did_you_mean
from btrfs_model.base.tables import html_table
from btrfs_model.patches import Patch

if TYPE_CHECKING:
    import pandas as pd

_BY_SLUG: Final = {str(patch): patch for patch in Patch}
_BITS: Final = {
    patch: 1 << bit for bit, patch in enumerate(one for one in Patch if one.asked == "C")
}

# Of what Debian and the stable trees made of a release.
_STABLE: Final = ("v5.10.46", "v5.10.223", "v6.1.176", "v6.1.192", "v6.12.101", "v6.18.44")

_RELEASES: Final = (
    *(f"v4.{minor}" for minor in range(16, 21)),
    *(f"v5.{minor}" for minor in range(20)),
    *(f"v6.{minor}" for minor in range(19)),
)


def version(name: str) -> tuple[int, ...]:
    """Return the numbers of a preset, or of a kernel's release (``6.2.0-39-generic``)."""
    numbers = re.match(r"v?([\d.]*\d)", name)
    assert numbers is not None
    return tuple(map(int, numbers[1].split(".")))


PRESETS: Final[tuple[str, ...]] = tuple(sorted((*_RELEASES, *_STABLE), key=version))
"""Kernels by name: every release, and the stable ones of which records exist."""


def preset_of(release: str) -> str:
    """Return the newest preset that is not newer than a kernel, by its release.

    >>> preset_of("6.12.101"), preset_of("6.2.0-39-generic")
    ('v6.12.101', 'v6.2')
    """
    return [name for name in PRESETS if version(name) <= version(release)][-1]


@cache
def _preset(name: str) -> frozenset[Patch]:
    numbers = version(name)
    return frozenset(
        patch
        for patch in Patch
        if (patch.release and version(patch.release) <= numbers[:2])
        or any(one[:2] == numbers[:2] and one <= numbers for one in map(version, patch.backports))
    )


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
        """Read ``PRESET [+ TOGGLE | - TOGGLE]...``, e.g. ``v6.12 - send-utimes-cache``.

        Raises
        ------
        UnknownBehaviourError
            For a preset or toggle that is not in the table.

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
        if name not in PRESETS:
            raise UnknownBehaviourError(
                f"unknown kernel '{name}' in behaviour '{text}': one of {', '.join(PRESETS)}"
                f"{_without_spaces(name) or did_you_mean(name, PRESETS)}"
            )
        patches = set(_preset(name))
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
        changed = self.patches ^ (_preset(name) if name in PRESETS else frozenset())
        rows = [("+" if one in self.patches else "-", one, one.release, one.what)
                for one in Patch if one in changed]  # fmt: skip
        return html_table(title, ["", "toggle", "release", "what"], rows, len(rows))

    def __str__(self) -> str:
        return self.text

    @cached_property
    def bits(self) -> int:
        """The toggles as bits for the C kernels: ``1 << enum bm_toggle``."""
        return sum(_BITS.get(patch, 0) for patch in self.patches)


@cache
def _behaviour(name: str) -> Behaviour:
    return Behaviour(_preset(name), name)


def table() -> pd.DataFrame:
    """Return the table of toggles.

    Returns
    -------
    pandas.DataFrame
        A row for each toggle: slug, release, backports (stable releases), commit, title, what,
        needs (toggles), asked (by ``"C"``, by ``"Python"`` alone, or ``"nowhere"``, where it is the
        same with and without it).
    """
    import pandas as pd

    columns = ["slug", "release", "backports", "commit", "title", "what", "needs", "asked"]
    rows = [
        (str(one), one.release, " ".join(one.backports), one.commit, one.subject, one.what,
         " ".join(one.needs), one.asked)
        for one in Patch
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)
