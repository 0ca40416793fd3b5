# SPDX-License-Identifier: GPL-2.0-only
"""The page: what Python puts into it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from jinja2 import Environment, PackageLoader

from btrfs_model.base.arguments import checked
from btrfs_model.base.charts import COLOURS, KINDS
from btrfs_model.base.errors import BtrfsModelError, CorruptImageError
from btrfs_model.base.printable import printable
from btrfs_model.base.whole_file import whole_file
from btrfs_model.drawings.explore.form import Nowhere, make_form
from btrfs_model.drawings.explore.pack import NAMED, columns, deflate, pack_trees
from btrfs_model.drawings.picture import DARK
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.structs import SUPER_BLOCK
from btrfs_model.ondisk.superblock import SUPER_OFFSETS
from btrfs_model.questions.dumptree.trees import TreeRoot, pointed_at, rooted_trees
from btrfs_model.questions.send.ioctl import send
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.image import Image
from btrfs_model.volume.roots import is_subvolume_id, tree_name
from btrfs_model.volume.subvolume import Subvolume

if TYPE_CHECKING:
    import pandas as pd

_SCRIPTS: Final = ("blocks.js", "states.js", "words.js", "form.js", "trees.js", "map.js",
                   "files.js", "view.js", "links.js", "drop.js", "routes.js")  # fmt: skip
_INKS: Final = COLOURS | {f"ink{number}": colour for number, colour in enumerate(KINDS[:4])}
_OF_THE_MAP: Final = ("after", "before", "ink0", "ink2", "ink1", "ink3", "muted")
"""Colours of files, extents, checksums, free space, logs, other trees and file data."""
_ROWS: Final = 5000
"""Commands of a stream in one part."""
_SHOWN: Final = 8 << 20
"""Bytes of the largest page that a notebook shows."""


@dataclass(frozen=True)
class Page:
    """A page that needs nothing but itself; a notebook shows it.

    Attributes
    ----------
    title : str
        What it is of.
    parts : tuple of str
        The page, in pieces.
    """

    title: str
    parts: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Page({self.title!r}, {sum(map(len, self.parts)):,} bytes)"

    @property
    def html(self) -> str:
        """The whole page."""
        return "".join(self.parts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file, which takes its place when it is complete.

        Raises
        ------
        OSError
            When it cannot be written.
        """
        with whole_file(path) as file:
            for part in self.parts:
                file.write(part.encode())

    def _repr_html_(self) -> str:
        if sum(map(len, self.parts)) > _SHOWN:
            return f"<p>{escape(repr(self))}: save it, and open it in a browser.</p>"
        return (
            f'<iframe sandbox="allow-scripts allow-forms" title="{escape(self.title)}" '
            'style="width: 100%; height: 46rem; border: 1px solid" '
            f'srcdoc="{escape(self.html)}"></iframe>'
        )


@checked
@exclusive
def explore(
    fs: Filesystem,
    snapshot: str | bytes | int | Subvolume | None = None,
    parent: str | bytes | int | Subvolume | None = None,
    *,
    beside: Filesystem | None = None,
) -> Page:
    """Make a page with all trees of a filesystem, down to the bytes of their items.

    Trees unfold to nodes, leaves and items; each field stands beside its bytes, written as
    ``btrfs inspect-internal dump-tree`` does. One can look for a key, an inode, a path or a logical
    address, follow what a field leads to, see who refers to a block or an extent, and compare two
    trees. Unused bytes of blocks are left out, and so is file data outside of trees. A tree block
    that cannot be read is shown as the fault that it has.

    Parameters
    ----------
    fs : Filesystem
        What is shown: its last commit, logs, and what is left of the commits that the backup roots
        of the superblock lead to.
    snapshot : str, bytes, int or Subvolume, optional
        Show also what a send of this snapshot says: its commands, and the items that cause them.
    parent : str, bytes, int or Subvolume, optional
        Send the difference to this snapshot.
    beside : Filesystem, optional
        Another one that the page has as well, such as what another kernel made of the same calls:
        its trees stand beside those of the same number, with what differs.

    Returns
    -------
    Page
        The same input gives the same bytes.

    Raises
    ------
    OSError
        Where the send fails, see :func:`btrfs_model.send`.
    """
    image = fs.image
    stream, commands = None, list[bytes]()
    if snapshot is not None:
        sent = send(fs, snapshot, parent, explain=True, to=cast(BinaryIO, Nowhere()))
        assert sent.causes is not None
        commands = list(_commands(sent.causes))
        ends = [None if one is None else str(fs.subvolume(one).id) for one in (snapshot, parent)]
        stream = {"rows": len(sent.causes), "per_part": _ROWS, "bytes": sent.size, "trees": ends}
    disks, data = [], dict[str, bytes]()
    for key, one in (("", fs), ("second", beside)):
        if one is not None:
            disk, parts = _disk(one, key)
            disks.append(disk)
            data |= parts
    about = {"disks": disks, "named": NAMED, "form": make_form(), "stream": stream}
    title = f"{disks[0]['name']}, generation {image.superblock.generation}"
    head, tail = _frame(title, about)
    data |= {f"stream{number}": part for number, part in enumerate(commands)}
    return Page(title, (head, *(_script(name, part) for name, part in data.items()), tail))


def _disk(fs: Filesystem, key: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return what the page knows of a disk, and its data by name."""
    image, before = fs.image, key and f"{key}-"
    states = [fs, *_older(image)]
    found = [_roots(state.image) for state in states]
    packs = pack_trees(image, [[root.tree for root in roots] for roots, _ in found])
    faults = []
    for lost, (_, fault) in zip(packs.faults, found, strict=True):
        if fault and fault not in lost.values():
            lost[0] = fault
        faults.append({str(address): printable(text) for address, text in lost.items()})
    disk = {
        "key": key,
        "name": printable(os.fspath(image.path)).rpartition("/")[2],
        "nodesize": image.nodesize,
        "sectorsize": image.sectorsize,
        "super": SUPER_OFFSETS[0],
        "chunks": list(_chunks(image)),
        "csum_size": image.superblock.csum_size,
        "roots": [
            {"generation": state.image.superblock.generation,
             "bytenr": str(state.image.superblock.root),
             "trees": [_tree(state, root) for root in roots]}
            for state, (roots, _) in zip(states, found, strict=True)
        ],
        "counts": packs.counts,
    }  # fmt: skip
    data = {
        "index": deflate(columns(packs.rows)),
        "super": deflate(_superblock(image)),
        "faults": deflate(json.dumps(faults).encode("ascii")),
        **{f"pack{number}": pack for number, pack in enumerate(packs.packs)},
    }
    return disk, {f"{before}{name}": part for name, part in data.items()}


def _older(image: Image) -> Iterator[Filesystem]:
    """Yield the filesystem as the backup roots of its superblock have it, the newest first."""
    sb = image.superblock
    backups = {one.tree_root_gen: one for one in sb.backups if one.tree_root}
    for generation, backup in sorted(backups.items(), reverse=True):
        if generation >= sb.generation:
            continue
        yield Filesystem(image.as_of(replace(
            sb, generation=generation, root=backup.tree_root, root_level=backup.tree_root_level,
            chunk_root=backup.chunk_root, chunk_root_level=backup.chunk_root_level,
            chunk_root_generation=backup.chunk_root_gen, log_root=0, log_root_level=0,
        )))  # fmt: skip


def _roots(image: Image) -> tuple[list[TreeRoot], str]:
    """Return the trees that can be found, and what is wrong where others cannot."""
    roots = pointed_at(image)
    try:
        # one by one: those before a fault are there
        for root in rooted_trees(image):
            roots.append(root)
    except CorruptImageError as error:
        return roots, error.strerror or ""
    return roots, ""


def _chunks(image: Image) -> Iterator[list[Any]]:
    """Yield address, length and places of chunks of which each place has the whole."""
    for chunk in image.chunks:
        if not chunk.width:
            devices = chunk.devids or (1,) * len(chunk.stripes)
            places = [[device, str(at)] for device, at in zip(devices, chunk.stripes, strict=True)]
            yield [str(chunk.logical), str(chunk.length), places]


def _superblock(image: Image) -> bytes:
    """Return the copy of the superblock that is in use."""
    for offset in SUPER_OFFSETS:
        data = bytes(image.view[offset : offset + SUPER_BLOCK.size])
        if len(data) == SUPER_BLOCK.size:
            copy = SUPER_BLOCK.unpack(data)
            if (copy.bytenr, copy.generation) == (offset, image.superblock.generation):
                return data
    return bytes(SUPER_BLOCK.size)


def _tree(fs: Filesystem, root: TreeRoot) -> dict[str, Any]:
    """Return what the page knows of a tree; `id` is unique."""
    objectid, _, offset = root.key
    identity, name = str(objectid), tree_name(objectid)
    if objectid in (ObjectId.TREE_LOG, ObjectId.TREE_RELOC) and offset:
        word = "log" if objectid == ObjectId.TREE_LOG else "reloc"
        identity, name = f"{word}{offset}", f"{word} of {tree_name(offset)}"
    elif objectid == ObjectId.TREE_LOG:
        name = "tree of log roots"
    elif is_subvolume_id(objectid):
        name = f"{name} “{_path(fs, objectid)}”"
    tree = root.tree
    return {
        "id": identity, "name": name, "root": str(tree.bytenr), "level": tree.level,
        "files": is_subvolume_id(offset if identity != str(objectid) else objectid),
    }  # fmt: skip


def _path(fs: Filesystem, objectid: int) -> str:
    try:
        return printable(fs.subvolume_path(objectid)) or "/"
    except (BtrfsModelError, OSError):
        return "?"


def _commands(causes: pd.DataFrame) -> Iterator[bytes]:
    """Yield the commands of a stream, some at a time, as JSON."""
    kinds = {kind.name: int(kind) for kind in ItemType}
    names = ("command", "path", "cause", "function", "change", "length", "inode",
             "item_objectid", "item_type", "item_offset")  # fmt: skip
    for at in range(0, len(causes), _ROWS):
        rows = causes[at : at + _ROWS]
        cells = [rows[name].tolist() for name in names]
        cells[1] = list(map(printable, cells[1]))
        for number in (6, 7, 9):
            cells[number] = list(map(str, cells[number]))
        cells[8] = [kinds.get(name, -1) for name in cells[8]]
        yield deflate(json.dumps(cells, separators=(",", ":")).encode("ascii"))


def _frame(title: str, about: dict[str, Any]) -> tuple[str, str]:
    """Return what stands in the page before the packs, and behind them."""
    here = resources.files("btrfs_model.drawings.explore")
    code = "".join((here / name).read_text("utf-8") for name in _SCRIPTS)
    code = f'"use strict";\n{code}'
    # a script has this digest or does not run, whatever the names of files are
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    shelf = Environment(
        loader=PackageLoader("btrfs_model.drawings.explore", "."), autoescape=True,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    text = shelf.get_template("page.html.j2").render(
        title=title, digest=digest, code=code, about=about,
        text=json.dumps(about, separators=(",", ":")).replace("<", "\\u003c"),
        colours=_INKS, dark=DARK, kinds=_OF_THE_MAP,
        shown=("ink", "muted", "line", "plain", "before", "after", "ink0", "ink1", "ink2", "ink3"),
    )  # fmt: skip
    head, _, tail = text.partition("<!-- packs -->")
    return head, tail


def _script(name: str, data: bytes) -> str:
    packed = base64.b64encode(data).decode("ascii")
    return f'<script type="application/octet-stream" id="{name}">{packed}</script>\n'
