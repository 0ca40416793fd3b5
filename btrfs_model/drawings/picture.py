# SPDX-License-Identifier: GPL-2.0-only
"""A picture of boxes with rows of text, and of links between them, as SVG.

Text is monospaced, so that its width is known without a font. The same picture is always the same
bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from btrfs_model.base.charts import COLOURS, KINDS, is_narrow
from btrfs_model.base.printable import printable
from btrfs_model.base.whole_file import whole_file

if TYPE_CHECKING:
    import os

FONT: Final = 12
CHAR: Final = 7.3  # pixels: no monospaced font in use is wider at that size
ROW: Final = 17
PAD: Final = 8
GAP: Final = 14
"""Pixels between boxes, at least."""
INKS: Final = KINDS[:5]
"""Colours of edges and titles: each has a contrast of 4.5 to 1 on what is behind it."""
_WIDE: Final = 640
"""Pixels of a picture that is narrow enough for every page."""
DARK: Final = {
    "white": "#14181f",
    COLOURS["plain"]: "#2a303b",
    COLOURS["line"]: "#4b5563",
    COLOURS["ink"]: "#e6e9ef",
    COLOURS["muted"]: "#b3bac6",
    COLOURS["before"]: "#f0a35e",
    COLOURS["after"]: "#7fbdf0",
    **dict(zip(KINDS, ("#4fd1c5", "#f08cc0", "#c2cc5c", "#c3a6ee"), strict=False)),
}
"""Colours of a picture on a dark page, by those on a light one."""


def _style() -> str:
    """Return the style of pictures: they fit their page, and are dark where it is.

    The site and JupyterLab say which they are, whatever the browser prefers.
    """
    names = {colour: f"--drawn{number}" for number, colour in enumerate(DARK)}
    dark = "".join(f"{names[colour]}:{other};" for colour, other in DARK.items())
    light = "".join(f"{name}:initial;" for name in names.values())
    rules = "".join(
        f'.btrfs-drawing [{what}="{colour}"]{{{what}:var({name},{colour})}}\n'
        for colour, name in names.items()
        for what in ("fill", "stroke")
    )
    ink = COLOURS["ink"]
    return (
        "svg.btrfs-drawing{max-width:100%;height:auto;"
        f"fill:var({names[ink]},{ink})}}\n{rules}"
        f"@media (prefers-color-scheme:dark){{.btrfs-drawing{{{dark}}}}}\n"
        f"[data-theme=light] .btrfs-drawing,[data-jp-theme-light=true] .btrfs-drawing{{{light}}}\n"
        f"[data-theme=dark] .btrfs-drawing,[data-jp-theme-light=false] .btrfs-drawing{{{dark}}}\n"
        "@media print{.btrfs-drawing.btrfs-drawing.btrfs-drawing{" + light + "}}\n"
        ".btrfs-whole:has(:checked) svg{max-width:none}\n"
    )


STYLE: Final = _style()
_HEAD: Final = 96  # above the boxes: title and description
_LINE: Final = 18
_TITLE: Final = 1.4  # how much wider a character of a title is
_NARROW: Final = 340.0


_KEYS: Final = 'data-lm-suppress-shortcuts="true"'
"""JupyterLab has its own use for arrow keys, except where this attribute is."""


@dataclass
class Box:
    """A box: a title, rows of text below it.

    `title`: its first line; `rows`: the others.
    `colour`: of its edge and title bar.
    `x`, `y`: of the upper left corner, in pixels.
    `is_fold`: it stands for what is not shown.
    `is_new`: the step before does not have it.
    `least`: its width at least.
    `identity`: what it stands for, whatever its text is; empty: its text.
    """

    title: str
    rows: Sequence[str] = ()
    colour: str = COLOURS["muted"]
    x: float = 0
    y: float = 0
    is_fold: bool = False
    is_new: bool = False
    least: float = 0
    identity: str = ""

    @property
    def width(self) -> float:
        """Pixels."""
        longest = max(len(printable(text)) for text in (self.title, *self.rows))
        return max(self.least, longest * CHAR + 2 * PAD)

    @property
    def height(self) -> float:
        """Pixels."""
        return ROW * (1 + len(self.rows)) + PAD

    def port(self, row: int | None) -> float:
        """Return how far below the top a link to a row starts; None: to the title."""
        return ROW * (0.5 + (0 if row is None else row + 1)) + PAD / 4


@dataclass
class Link:
    """A line with an arrow from a box, or one of its rows, to another."""

    source: Box
    target: Box
    colour: str = COLOURS["muted"]
    row: int | None = None
    target_row: int | None = None


@dataclass
class Bar:
    """A rectangle to scale, with what it is as a tooltip."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    title: str


@dataclass
class Line:
    """A thin line between two points."""

    x1: float
    y1: float
    x2: float
    y2: float
    colour: str


@dataclass
class Drawing:
    """A picture; notebooks show it, :meth:`save` writes it.

    Attributes
    ----------
    title, description : str
        What it shows, also for who cannot see it.
    boxes : list of Box
        With their places, in pixels from the upper left corner of the first.
    links : list of Link
        Between boxes.
    bars, lines : list
        What is drawn to scale.
    """

    title: str
    description: str
    boxes: list[Box] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    @property
    def svg(self) -> str:
        """The picture as SVG."""
        return _svg(self, STYLE)

    @property
    def step(self) -> str:
        """The picture for a page that has its style."""
        return _scrolled(_svg(self, ""))

    def _repr_html_(self) -> str:
        shown = _scrolled(self.svg)
        if _extent(self)[0] <= _WIDE:
            return shown
        # a page may make it smaller
        tick = f'<label><input type="checkbox" {_KEYS}> full size, to be scrolled</label>'
        return f'<div class="btrfs-whole">{tick}{shown}</div>'

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file, as SVG."""
        with whole_file(Path(path)) as file:
            file.write(self.svg.encode())

    def __repr__(self) -> str:
        return f"Drawing({self.title!r}, {len(self.boxes)} boxes)"


def stack(boxes: Sequence[Box], x: float, y: float) -> float:
    """Put boxes below each other; return where the next one may start."""
    for box in boxes:
        box.x, box.y = x, y
        y += box.height + GAP
    return y


def spread(boxes: Sequence[Box], top: float) -> None:
    """Move boxes that overlap down, in their order; the first stays below `top`."""
    for box in boxes:
        box.y = max(box.y, top)
        top = box.y + box.height + GAP


# ----------------------------------------------------------------------------------------- SVG --


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(x: float, y: float, text: str, **more: str) -> str:
    attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    return f'<text x="{_number(x)}" y="{_number(y)}"{attributes}>{escape(printable(text))}</text>\n'


def _box(box: Box) -> str:
    rect = (
        f'<rect x="{_number(box.x)}" y="{_number(box.y)}" width="{_number(box.width)}" '
        f'height="{_number(box.height)}" rx="4"'
    )
    dashes = ' stroke-dasharray="4 3"' if box.is_fold else ""
    fill, edge = (COLOURS["plain"], 3) if box.is_new else ("white", 1.5)
    parts = [f'{rect} fill="{fill}" stroke="{box.colour}" stroke-width="{edge}"{dashes}/>\n']
    at = box.y + ROW - PAD / 4
    parts.append(_text(box.x + PAD, at, box.title, font_weight="bold", fill=box.colour))
    for number, row in enumerate(box.rows, 1):
        parts.append(_text(box.x + PAD, at + number * ROW, row))
    return f"<g>\n{''.join(parts)}</g>\n"


def _link(link: Link) -> str:
    x1, y1 = link.source.x + link.source.width, link.source.y + link.source.port(link.row)
    x2, y2 = link.target.x, link.target.y + link.target.port(link.target_row)
    if is_narrow():
        # down from the edge of what is above it
        x1, y1 = link.source.x + PAD, link.source.y + link.source.height
        path = f"M{_number(x1)} {_number(y1)} V{_number(y2)} H{_number(x2 - 5)}"
    else:
        bend = max(20, (x2 - x1) / 2)
        points = (x1, y1, x1 + bend, y1, x2 - bend, y2, x2 - 5, y2)
        path = "M{} {} C{} {} {} {} {} {}".format(*map(_number, points))
    head = f"M{_number(x2)} {_number(y2)} l-6 -3.5 v7 z"
    return (
        f'<path d="{path}" fill="none" stroke="{link.colour}" stroke-width="1.3"/>\n'
        f'<path d="{head}" fill="{link.colour}"/>\n'
    )


def _bar(bar: Bar) -> str:
    place = "".join(
        f' {name}="{_number(getattr(bar, name))}"' for name in ("x", "y", "width", "height")
    )
    return (
        f'<rect{place} fill="{bar.colour}" stroke="white" stroke-width="0.5">'
        f"<title>{escape(printable(bar.title))}</title></rect>\n"
    )


def _line(line: Line) -> str:
    ends = "".join(f' {name}="{_number(getattr(line, name))}"' for name in ("x1", "y1", "x2", "y2"))
    return f'<line{ends} stroke="{line.colour}" stroke-width="0.7"/>\n'


def _wrapped(text: str, width: float) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and (len(lines[-1]) + len(word) + 1) * CHAR > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".lstrip()
    return lines


def _scrolled(svg: str) -> str:
    return f'<div style="overflow-x:auto" tabindex="0" {_KEYS}>{svg}</div>'


def _extent(drawing: Drawing) -> tuple[float, float]:
    """Return width and height of what is in a picture, in pixels."""
    ends = [(box.x + box.width, box.y + box.height) for box in drawing.boxes]
    ends += [(bar.x + bar.width, bar.y + bar.height) for bar in drawing.bars]
    least = [_NARROW] if is_narrow() else [480.0, len(drawing.title) * CHAR * _TITLE]
    width = max(least + [right for right, _ in ends])
    return width, max([0.0] + [bottom for _, bottom in ends])


def _svg(drawing: Drawing, style: str) -> str:
    width, bottom = _extent(drawing)
    titles, about = _wrapped(drawing.title, width / _TITLE), _wrapped(drawing.description, width)
    head = _HEAD - 4 * _LINE + (len(titles) + len(about)) * _LINE
    height = head + bottom
    view = f"-{PAD} -{PAD} {_number(width + 2 * PAD)} {_number(height + 2 * PAD)}"
    title, description = escape(printable(drawing.title)), escape(printable(drawing.description))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="btrfs-drawing" role="img" '
        f'xml:space="preserve" viewBox="{view}" '
        f'width="{_number(width + 2 * PAD)}" height="{_number(height + 2 * PAD)}" '
        f'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="{FONT}" '
        f'fill="{COLOURS["ink"]}">\n<title>{title}</title>\n<desc>{description}</desc>\n',
        f"<style>\n{style}</style>\n" if style else "",
        f'<rect x="-{PAD}" y="-{PAD}" width="100%" height="100%" fill="white"/>\n',
    ]
    for number, line in enumerate(titles):
        parts.append(_text(0, 20 + number * _LINE, line, font_size="16", font_weight="bold"))
    for number, line in enumerate(about, len(titles) - 1):
        parts.append(_text(0, 42 + number * _LINE, line, fill=COLOURS["muted"]))
    parts.append(f'<g transform="translate(0 {_number(head)})">\n')
    parts += map(_line, drawing.lines)
    parts += map(_bar, drawing.bars)
    parts += map(_link, drawing.links)
    parts += map(_box, drawing.boxes)
    return "".join([*parts, "</g>\n</svg>\n"])
