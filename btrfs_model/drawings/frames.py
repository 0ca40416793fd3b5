# SPDX-License-Identifier: GPL-2.0-only
"""Drawings as steps of one picture, of which a page or a notebook shows the chosen one.

Radio buttons choose, and style sheets show: no script runs, so a saved notebook and the site show
the steps as well. Where style is taken away, all steps stand below each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from btrfs_model.base.charts import COLOURS
from btrfs_model.base.printable import printable
from btrfs_model.base.tables import plural
from btrfs_model.base.whole_file import whole_file
from btrfs_model.drawings.picture import STYLE, Box, Drawing

if TYPE_CHECKING:
    import os

_NAMED: Final = 4
"""New boxes that a description names."""
_STYLE: Final = f"""\
.btrfs-frames {{ margin: 0; }}
.btrfs-frames fieldset {{ display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; min-width: 0; \
margin: 0; padding: .5rem; border: 1px solid {COLOURS["muted"]}; }}
.btrfs-frames label {{ padding: .2rem 0; overflow-wrap: anywhere; }}
.btrfs-frames figure {{ order: 1; flex: 0 0 100%; min-width: 0; margin: 0; }}
.btrfs-frames label:not(:has(:checked)) + figure {{ display: none; }}
"""
_PAGE: Final = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" \
content="default-src 'none'; style-src 'unsafe-inline'; form-action 'none'">
<title>{title}</title>
</head>
<body style="font-family: system-ui, 'DejaVu Sans', sans-serif; color-scheme: light dark">
<main>
<h1 style="font-size: 1.2rem">{title}</h1>
{steps}</main>
</body>
</html>
"""


@dataclass(frozen=True)
class Frames:
    """Steps of one picture; notebooks show the one that is chosen, :meth:`save` writes a page.

    Attributes
    ----------
    title : str
        What it shows.
    drawings : dict of str to Drawing
        The picture of each step, by its caption. Boxes that the step before does not have are
        filled.
    """

    title: str
    drawings: Mapping[str, Drawing]

    def _repr_html_(self) -> str:
        steps = "".join(
            '<label><input type="radio" name="step" data-lm-suppress-shortcuts="true"'
            f"{'' if number else ' checked'}> "
            f"{number + 1}. {escape(printable(caption))}</label>\n"
            f"<figure>{drawing.step}</figure>\n"
            for number, (caption, drawing) in enumerate(self.drawings.items())
        )
        # the attribute keeps JupyterLab from taking the arrow keys; radio buttons of one form are
        # one group, so that none needs a name of its own; this method sends nothing anywhere
        return (
            '<form class="btrfs-frames" method="dialog">\n'
            f"<style>\n{_STYLE}{STYLE}</style>\n<fieldset>\n"
            f"<legend>{plural(len(self.drawings), 'step')}: arrow keys lead on and back</legend>\n"
            f"{steps}</fieldset>\n</form>\n"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the steps to a file, as a page that needs nothing else.

        Raises
        ------
        OSError
            When it cannot be written.
        """
        page = _PAGE.format(title=escape(printable(self.title)), steps=self._repr_html_())
        with whole_file(path) as file:
            file.write(page.encode())

    def __repr__(self) -> str:
        return f"Frames({self.title!r})"


def frames(drawings: Mapping[str, Drawing]) -> Frames:
    """Put drawings together as steps, by their captions; mark what is new in each.

    Raises ValueError: where there is none.
    """
    if not drawings:
        raise ValueError("there is nothing to draw in an empty dict")
    (first, *_), pictures = drawings.values(), {}
    before = first
    for caption, drawing in drawings.items():
        pictures[caption] = _marked(drawing, before)
        before = drawing
    return Frames(f"{first.title}, in {plural(len(pictures), 'step')}", pictures)


def _marked(drawing: Drawing, before: Drawing) -> Drawing:
    """Return a drawing whose boxes are filled where the one before does not have them."""

    def identity(box: Box) -> object:
        return box.identity or (box.title, *box.rows)

    known = set(map(identity, before.boxes))
    marked = deepcopy(drawing)
    for box in marked.boxes:
        box.is_new = identity(box) not in known
    if new := [box.title for box in marked.boxes if box.is_new]:
        named = "; ".join(new[:_NAMED])
        more = f"; {plural(len(new) - _NAMED, 'other')}" if len(new) > _NAMED else ""
        marked.description += f" New since the step before, and filled: {named}{more}."
    return marked
