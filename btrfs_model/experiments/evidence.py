# SPDX-License-Identifier: GPL-2.0-only
"""What is known of one toggle: its commit, who asks for it, and what shows it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from btrfs_model.base.errors import UnknownNameError
from btrfs_model.behaviour import sides_judged
from btrfs_model.experiments.workloads import NAMES, load
from btrfs_model.patches import Patch

_PACKAGE: Final = Path(__file__).resolve().parents[1]
_PROJECT: Final = _PACKAGE.parent


def toggles_of(name: str) -> list[str]:
    """Return the toggles that a name stands for: itself, or those of a commit.

    `name`: a toggle, or six digits or more of the id of a commit; what is neither stays as it is.
    """
    number = name.lower()
    if name in set(Patch) or not re.fullmatch("[0-9a-f]{6,40}", number):
        return [name]
    found = [one for one in Patch if one.commit and (
        one.commit.startswith(number) or number.startswith(one.commit))]  # fmt: skip
    return [str(one) for one in found] or [name]


def evidence(slug: str) -> dict[str, Any]:
    """Return all that is known of a toggle.

    Parameters
    ----------
    slug : str
        Its name, e.g. ``send-utimes-cache``.

    Returns
    -------
    dict
        ``slug``, ``commit``, ``title``, ``release``, ``backports`` (stable releases), ``what`` it
        changes, ``needs`` (toggles), ``asked`` (see :attr:`Patch.asked`), ``judged`` (the sides
        that kernels were compared with), ``places`` that ask for it, ``workloads`` that show it
        and ``tests`` that name it: ``file:line`` in the project. An
        installed package has no tests and no sources of C to look into.

    Raises
    ------
    UnknownNameError
        When there is no such toggle.
    """
    patch = {str(one): one for one in Patch}.get(slug)
    if patch is None:
        raise UnknownNameError("toggle", slug, Patch)
    return {
        "slug": str(patch),
        "commit": patch.commit,
        "title": patch.subject,
        "release": patch.release,
        "backports": list(patch.backports),
        "what": patch.what,
        "needs": [str(one) for one in patch.needs],
        "asked": str(patch.asked),
        "judged": sides_judged(patch),
        "places": places(patch),
        "workloads": [name for name in NAMES if patch in load(name).toggles],
        "tests": _tests(patch),
    }


def places(patch: Patch) -> list[str]:
    """Return where a toggle is asked for, ``file:line``: in Python, then in C."""
    python = (path for path in _PACKAGE.rglob("*.py") if path.name != "patches.py")
    native = _PROJECT / "native"
    c = (
        path
        for path in native.rglob("*.[ch]")
        if path.name != "toggles.h" and "tests" not in path.relative_to(native).parts
    )
    name = patch.name
    return [
        *_lines(python, patch, rf"\bPatch\.{name}\b"),
        *_lines(c, patch, rf"\bBM_TOGGLE_{name}\b|\bTOGGLE\(\w+, {name}\)"),
    ]


def _tests(patch: Patch) -> list[str]:
    pattern = rf"\bPatch\.{patch.name}\b|(?<![\w-]){patch}(?![\w-])"
    return [*_lines((_PROJECT / "tests").rglob("*.py"), patch, pattern)]


def _lines(files: Iterable[Path], patch: Patch, pattern: str) -> Iterator[str]:
    for path in sorted(files):
        text = path.read_text()
        if patch.name not in text and str(patch) not in text:  # sooner said than by a pattern
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(pattern, line):
                yield f"{path.relative_to(_PROJECT)}:{number}"
