# SPDX-License-Identifier: GPL-2.0-only
"""Which kernels a list of Debian's packages (``Packages``) has, and in which packages each is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from btrfs_model.behaviour import version

_IMAGE: Final = re.compile(r"linux-image-(\d[^-]*(?:-\d+)?)-amd64(-unsigned)?")
_NEEDED: Final = re.compile(r"linux-(?:binary|modules)-[^ ,|]+")


def stanzas(text: str) -> Iterator[dict[str, str]]:
    r"""Yield the packages of a list, each with its fields.

    >>> [*stanzas("Package: a\nVersion: 1\nDescription: one\n two\n\nPackage: b\n")]
    [{'Package': 'a', 'Version': '1', 'Description': 'one'}, {'Package': 'b'}]
    """
    for part in re.split(r"\n\n+", text.strip()):
        yield dict(re.findall(r"^([A-Za-z-]+): ?(.*)$", part, re.M))


def kernels(text: str) -> dict[str, list[str]]:
    """Return the kernels of a list by release, each with the packages that it is in.

    Those for amd64 of the usual flavour: the others have no 9p. Since 6.19 modules have a package
    of their own. A kernel that the list has no modules of any more is left out.
    """
    there = {one["Package"]: one for one in stanzas(text) if "Package" in one}
    found: dict[str, list[str]] = {}
    for name, one in there.items():
        image = _IMAGE.fullmatch(name)
        if image is None:
            continue
        release = one["Version"].partition("-")[0].replace("~", "-")
        parts = _NEEDED.findall(one.get("Depends", "")) or [name]
        # a signed one stands for itself and for one that is not
        if all(part in there for part in parts) and (release not in found or not image[2]):
            found[release] = parts
    return found


def newest_of(wanted: str, there: Mapping[str, list[str]]) -> str | None:
    """Return the release that is meant: that one, or the newest of a series (``6.17``).

    >>> newest_of("6.17", {"6.17.8": [], "6.17.13": [], "6.1.7": []})
    '6.17.13'
    """
    if wanted in there:
        return wanted
    series = [one for one in there if one.startswith(f"{wanted}.")]
    return max(series, key=version, default=None)
