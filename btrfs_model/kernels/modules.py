# SPDX-License-Identifier: GPL-2.0-only
"""The few modules of a kernel that a guest needs, in the order in which they are loaded."""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from btrfs_model.base.errors import KernelMissingError

_WANTED: Final = ("btrfs", "9p", "9pnet_virtio", "loop")
_OF_ALGORITHMS: Final = ("kernel/crypto", "kernel/lib", "kernel/arch/x86/crypto")
"""Where what a module asks for by an alias is, as ``crypto-crc32c``."""
_ENTRY: Final = re.compile(rb"(depends|softdep|alias)=([^\0]*)\0")


def read(path: Path) -> bytes:
    """Return the code of a module."""
    code = path.read_bytes()
    return lzma.decompress(code) if path.suffix == ".xz" else code


def named(path: Path) -> str:
    """Return the name of a module, as others ask for it.

    >>> named(Path("kernel/crypto/blake2b-generic.ko.xz"))
    'blake2b_generic'
    """
    return path.name.partition(".")[0].replace("-", "_")


def entries(code: bytes) -> dict[str, list[str]]:
    """Return what a module says of itself: ``depends``, ``softdep`` and ``alias``, each in words.

    >>> entries(b"depends=xor,raid6_pq" + bytes(1) + b"softdep=pre: sha256" + bytes(1))
    {'depends': ['xor', 'raid6_pq'], 'softdep': ['sha256'], 'alias': []}
    """
    found: dict[str, list[str]] = {"depends": [], "softdep": [], "alias": []}
    for key, value in _ENTRY.findall(code):
        words = re.split(r"[,\s]+", value.decode())
        found[key.decode()] += [word for word in words if word and not word.endswith(":")]
    return found


def needed(tree: Path) -> list[Path]:
    """Return the modules of a tree (``lib/modules/RELEASE``) that a guest has to load, in order.

    What a module needs comes before it. An algorithm that no module has is in the kernel.

    Raises
    ------
    KernelMissingError
        When a module is not there.
    """
    there = {named(path): path for path in sorted(tree.rglob("*.ko*"))}
    algorithms = dict(_algorithms(tree))
    found: dict[str, Path] = {}

    def add(name: str) -> None:
        if name in found:
            return
        if name not in there:
            raise KernelMissingError(f"{tree.name}: there is no module {name}")
        said = entries(read(there[name]))
        for other in [*said["depends"], *(algorithms.get(one, "") for one in said["softdep"])]:
            if other:
                add(other.replace("-", "_"))
        found[name] = there[name]

    for name in _WANTED:
        add(name)
    return [*found.values()]


def _algorithms(tree: Path) -> Iterator[tuple[str, str]]:
    """Yield the aliases of algorithms, each with the module that has it."""
    for folder in _OF_ALGORITHMS:
        for path in sorted((tree / folder).rglob("*.ko*")):
            for alias in entries(read(path))["alias"]:
                yield alias, named(path)
