# SPDX-License-Identifier: GPL-2.0-only
"""The gallery: disks that the model makes while the site is built, each with three questions.

``disks/NAME.sh`` makes a disk, ``disks.py`` says what one sees on it. A disk gets a page with its
script, its trees and its questions, and beside it the page of ``btrfs_model.drawings.explore``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import BashLexer, PythonLexer

import btrfs_model as bm
from btrfs_model.drawings.explore import explore
from btrfs_model.drawings.explore.page import Page
from btrfs_model.drawings.picture import Drawing
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.subvolume import Subvolume
from btrfs_model.volume.tree import Tree

HERE = Path(__file__).parent
SCRIPTS = HERE / "disks"
QUESTIONS = 3
"""Of each disk."""
SIZE = 1 << 30
"""Bytes of a device that a script names."""
SMALL = 6
"""Boxes of the picture on a card, about."""
LICENCE = "# SPDX-License-Identifier: GPL-2.0-only\n"

Asks = Callable[[Filesystem], Iterator[tuple[str, str]]]
Makes = Callable[[Path], list[Path]]
"""Writes the devices of a disk into a folder, and returns them."""
Shows = Callable[[Filesystem], Sequence[Subvolume | Tree]]


def of_files(fs: Filesystem) -> list[Subvolume | Tree]:
    """Return the trees of files, and the logs."""
    return [*map(fs.subvolume, fs.subvolume_ids), *fs.log_trees.values()]


@dataclass(frozen=True)
class Disk:
    """A disk of the gallery.

    `name`: of its pages; `title`, `words`: what one reads first.
    `asks`: yields questions, each with the answer that it reads from the disk.
    `makes`: what makes it where no script does.
    `shows`: which trees are drawn.
    """

    name: str
    title: str
    words: str
    asks: Asks
    makes: Makes | None
    shows: Shows

    @property
    def source(self) -> str:
        """What makes it, as one reads it."""
        if self.makes is not None:
            return inspect.getsource(self.makes)
        return (SCRIPTS / f"{self.name}.sh").read_text().removeprefix(LICENCE)

    def write(self, folder: Path) -> list[Path]:
        """Make it: write its devices into a folder."""
        if self.makes is not None:
            return self.makes(folder)
        return [run(self.source, folder / f"{self.name}.img")]


@dataclass
class Gallery:
    """Disks in the order of the page, under their headings."""

    disks: dict[str, list[Disk]] = field(default_factory=dict)

    def add(
        self,
        heading: str,
        name: str,
        title: str,
        words: str,
        makes: Makes | None = None,
        shows: Shows = of_files,
    ) -> Callable[[Asks], Asks]:
        """Take the function that asks about a disk; its arguments are those of `Disk`."""

        def take(asks: Asks) -> Asks:
            made = Disk(name, title, words, asks, makes, shows)
            self.disks.setdefault(heading, []).append(made)
            return asks

        return take

    def __iter__(self) -> Iterator[Disk]:
        return (disk for some in self.disks.values() for disk in some)


def run(text: str, image: Path) -> Path:
    """Run a script and write its device to a file, as it would be found if the power failed now."""
    result = bm.script(text, size=SIZE, name=image.stem)
    if result.status:
        raise RuntimeError(f"{image.stem}: status {result.status}: {result.output.decode()}")
    (fs,) = result.filesystems.values()
    fs.save_crash(image)
    result.close()
    return image


def answers(disk: Disk, fs: Filesystem) -> list[tuple[str, str]]:
    """Ask a disk its questions."""
    found = list(disk.asks(fs))
    if len(found) != QUESTIONS:
        raise ValueError(f"{disk.name}: {len(found)} questions, not {QUESTIONS}")
    return found


def shelf() -> Environment:
    """Return where the templates of the site are."""
    return Environment(loader=FileSystemLoader(HERE / "templates"), autoescape=True,
                       trim_blocks=True, lstrip_blocks=True)  # fmt: skip


def coloured(source: str, *, python: bool = False) -> Markup:
    """Return a script as the site shows code."""
    lexer = PythonLexer() if python else BashLexer()
    return Markup(highlight(source, lexer, HtmlFormatter(cssclass="highlight")))


class Built(NamedTuple):
    """What is shown of a disk: its live page, its trees, the same in small, and its answers."""

    live: Page
    picture: Drawing
    small: Drawing
    answers: list[tuple[str, str]]


@cache
def built(disk: Disk) -> Built:
    """Make a disk, and look at it."""
    with TemporaryDirectory() as folder, bm.open(disk.write(Path(folder))) as fs:
        trees = disk.shows(fs)
        return Built(explore(fs), bm.draw(trees), bm.draw(trees, blocks=SMALL), answers(disk, fs))


def body(disk: Disk, live: Path) -> str:
    """Return the body of the page of a disk, and write its live page."""
    made = built(disk)
    made.live.save(live)
    return (
        shelf()
        .get_template("disk.html.j2")
        .render(
            disk=disk,
            live=live.name,
            source=coloured(disk.source, python=disk.makes is not None),
            picture=Markup(made.picture._repr_html_()),
            questions=made.answers,
        )
    )


def cards(gallery: Gallery, folder: str) -> str:
    """Return the disks of the gallery: a picture and a word on each, which lead to its page."""
    text = ""
    for heading, disks in gallery.disks.items():
        text += f'\n### {heading}\n\n<div class="disks">\n'
        for disk in disks:
            text += (
                f'<a href="{folder}/{disk.name}.html"><span aria-hidden="true">'
                f"{built(disk).small.svg}</span><strong>{escape(disk.title)}</strong> "
                f"{escape(disk.words)}</a>\n"
            )
        text += "</div>\n"
    return text
