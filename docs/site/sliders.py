# SPDX-License-Identifier: GPL-2.0-only
"""Sliders of notebooks as plain HTML: the page needs nothing from elsewhere.

A notebook keeps the state of its widgets: a box of sliders and of stacks, one in the other, that
show the chart of where the sliders stand. ``static/sliders.js`` does that on a page.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"
State = dict[str, Any]


def plain(notebook: dict[str, Any]) -> None:
    """Put sliders of a notebook into HTML, in place; its widgets are forgotten."""
    state = notebook["metadata"].pop("widgets", {}).get(STATE, {}).get("state", {})
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            view = data.pop(VIEW, None)
            if view is not None and view["model_id"] in state:
                data["text/html"] = _box(state, state[view["model_id"]]["state"])


def _box(state: State, box: State) -> str:
    """Return sliders, and the charts of all places at which they may stand."""
    *sliders, charts = (_child(state, name) for name in box["children"])
    ranges = "".join(map(_slider, sliders))
    begin = [slider["index"] for slider in sliders]
    shown = "".join(
        f'<div data-at="{" ".join(map(str, at))}"{"" if at == begin else " hidden"}>{chart}</div>'
        for at, chart in _charts(state, charts, [])
    )
    return f'<div class="sliders">{ranges}{shown}</div>'


def _slider(slider: State) -> str:
    """Return a slider with its name and where it stands."""
    options, index = slider["_options_labels"], slider["index"]
    values = escape("|".join(options))
    return (
        f"<label><span>{escape(slider['description'])}</span> "
        f'<input type="range" min="0" max="{len(options) - 1}" value="{index}" '
        f'data-values="{values}" aria-valuetext="{escape(options[index])}"> '
        f"<output>{escape(options[index])}</output></label>"
    )


def _charts(state: State, one: State, at: list[int]) -> Iterator[tuple[list[int], str]]:
    """Return each chart with where the sliders stand for it."""
    if "children" not in one:
        yield at, one["value"]
        return
    for number, name in enumerate(one["children"]):
        yield from _charts(state, _child(state, name), [*at, number])


def _child(state: State, name: str) -> State:
    found: State = state[name.removeprefix("IPY_MODEL_")]["state"]
    return found
