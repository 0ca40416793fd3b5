# SPDX-License-Identifier: GPL-2.0-only
"""What of the site is made and not written.

A line ``<!-- made: NAME ARGUMENT -->`` of a page becomes what the function in `MADE` says: a part
of README, a table from the code or from ``data``. Names of kernel functions become links into the
kernel's git, by the lines in ``kernel.json`` that ``scripts/kernel_functions.py`` writes.
"""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import gallery
import sliders
import stepper
from disks import GALLERY
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform

import btrfs_model as bm
from btrfs_model.drawings.explore import explore
from btrfs_model.experiments import commits
from btrfs_model.experiments.workloads import NAMES
from btrfs_model.patches import Patch

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COMMIT = "https://git.kernel.org/torvalds/c/"
SAMPLE = re.compile(r'bm\.sample\("([^"]+)"\)')
TREE = "https://git.kernel.org/pub/scm/linux/kernel/git/stable/linux.git/tree"
# What is a folder in a clone and a page here.
FOLDERS = {
    "data/devices": "docs/reference/machines.md",
    "data/machines": "docs/reference/machines.md",
}
# Pages whose paper has links where the site has a table of contents.
CONTENTS = {
    "notebooks/README": {
        "The course": "notebooks/course/[0-9]*",
        "Five patches": [
            f"notebooks/{name}"
            for name in (
                "send-truncate",
                "log-dir",
                "send-utimes",
                "fiemap-shared",
                "send-readahead",
            )
        ],
        "Answers": ["notebooks/answers"],
        "Assignments": "notebooks/assignments/*",
        "Trade-offs": ["notebooks/trade-offs", "notebooks/studies/*"],
        "Words": ["notebooks/course/glossary"],
    },
}


def row(*cells: object) -> str:
    """Return a row of a table of Markdown."""
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |\n"


def head(*cells: str) -> str:
    """Return the head of such a table."""
    return row(*cells) + row(*("---" for _ in cells))


def part(heading: str) -> str:
    """Return the part of README below a heading; below none, what stands before the first."""
    parts = re.split(r"^## ", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    if not heading:
        return parts[0].split("\n", 1)[1]
    (found,) = (text for text in parts if text.startswith(f"{heading}\n"))
    return found.split("\n", 1)[1]


def toggles(_: str) -> str:
    """Return the table of toggles, release by release."""
    text = ""
    for release, group in groupby(Patch, key=lambda patch: patch.release):
        text += f"\n## {f'Linux {release}' if release else 'In no release'}\n\n"
        text += head("toggle", "commit", "what it changes")
        for patch in group:
            commit = f"[{patch.commit}]({COMMIT}{patch.commit})" if patch.commit else "-"
            also = f"; also in {', '.join(patch.backports)}" if patch.backports else ""
            text += row(f"`{patch}`", f"{commit} {patch.subject}{also}", patch.what)
    return text


def messages(_: str) -> str:
    """Return the commit messages that are replayed."""
    text = head("workload", "commit", "in Linux")
    for name in NAMES:
        one = commits.load(name)
        text += row(
            f"[{name}](../../notebooks/{name}.ipynb)", f"[{one.title}]({one.url})", one.release
        )
    return text


def tables(folder: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the files of a folder of data, each with its name."""
    files = sorted((ROOT / "data" / folder).glob("*.toml"))
    return [(file.stem, tomllib.loads(file.read_text())) for file in files]


def machines(_: str) -> str:
    """Return the machines, each with its unit costs."""
    text = ""
    for name, machine in tables("machines"):
        text += f"\n### `{name}`\n\n{machine['title']}. Measured on {machine['measured']}.\n\n"
        text += head("cost", "value", "90 % interval", "of what", "paid for")
        for cost, one in machine["cost"].items():
            low, value, high = (f"{one[key]:,.4g}" for key in ("low", "value", "high"))
            counts = ", ".join(f"`{counter}`" for counter in one["counts"])
            text += row(cost, f"{value} {one['unit']}", f"{low} to {high}", one["meaning"], counts)
    return text


def devices(_: str) -> str:
    """Return the devices, each with its parameters and where they come from."""
    text = ""
    for name, device in tables("devices"):
        text += f"\n### `{name}`\n\n{device['title']}.\n\n"
        sources = device.pop("provenance", {})
        text += head("parameter", "value", "from")
        for key, value in device.items():
            if not isinstance(value, dict) and key != "title":
                text += row(f"`{key}`", value, sources.get(key, ""))
    return text


def disks(_: str) -> str:
    """Return the disks of the gallery."""
    return gallery.cards(GALLERY, "gallery")


def stories(_: str) -> str:
    """Return the stories of the gallery."""
    return stepper.cards("gallery")


MADE: dict[str, Callable[[str], str]] = {
    "part": part,
    "disks": disks,
    "stories": stories,
    "toggles": toggles,
    "messages": messages,
    "machines": machines,
    "devices": devices,
}


def make(app: Sphinx, page: str, source: list[str]) -> None:
    """Fill in what is made; `source` is the one text of a page."""
    up = "../" * page.count("/")
    text = source[0]
    for line, name, argument in re.findall(r"^(<!-- made: (\w+) ?(.*?) -->)$", text, re.MULTILINE):
        made = MADE[name](argument)
        if name == "part":
            made = re.sub(r"\]\((?![a-z]+:|#)", f"]({up}", made)
            made = made.replace('srcset="docs/', f'srcset="{up}_images/')
        text = text.replace(line, made)
    for folder, place in FOLDERS.items():
        text = re.sub(rf"\]\((?:\.\./)*{folder}/?\)", f"]({up}{place})", text)
    # a block of a file is marked with its name, which is no language
    text = re.sub(r"^(```\w+) [\w.]+$", r"\1", text, flags=re.MULTILINE)
    if page in CONTENTS:
        for title, entries in CONTENTS[page].items():
            which = [entries] if isinstance(entries, str) else entries
            lines = "\n".join(f"/{entry}" for entry in which)
            text += f"\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {title}\n\n{lines}\n```\n"
    source[0] = text


def opened(cells: list[dict[str, Any]], folder: str) -> Iterator[dict[str, Any]]:
    """Yield the cells of a notebook; behind one that opens a sample, a link to its live page."""
    for number, cell in enumerate(cells):
        yield cell
        if cell["cell_type"] == "code" and (names := opens("".join(cell["source"]))):
            links = ", ".join(f'<a href="{folder}/{live(name)}">{name}</a>' for name in names)
            text = f"*Open this disk: {links}.*"
            yield {"cell_type": "markdown", "id": f"open{number}", "metadata": {}, "source": text}


def opens(source: str) -> dict[str, list[str]]:
    """Return the filesystems that a text opens, with their samples: a device each."""
    devices: dict[str, list[str]] = {}
    for name in dict.fromkeys(SAMPLE.findall(source)):
        folder, _, last = name.rpartition("/")
        devices.setdefault(folder if last.isdigit() else name, []).append(name)
    return devices


def live(sample: str) -> str:
    """Return the file of the live page of a sample."""
    return f"{sample.replace('/', '-')}-disk.html"


def show(app: Sphinx, page: str, source: list[str]) -> None:
    """Prepare a notebook: pictures get their text, and sliders become plain HTML."""
    if app.env.doc2path(page).suffix != ".ipynb":
        return
    notebook = json.loads(source[0])
    for cell in notebook["cells"]:
        if "alt" in cell["metadata"]:
            cell["metadata"]["mystnb"] = {"image": {"alt": cell["metadata"]["alt"]}}
    sliders.plain(notebook)
    up = "../" * page.count("/")
    notebook["cells"] = list(opened(notebook["cells"], f"{up}docs/gallery"))
    source[0] = json.dumps(notebook)


class Outputs(SphinxTransform):
    """Tables that notebooks put out are as accessible as those of papers."""

    default_priority = 900

    def apply(self, **_: Any) -> None:
        """Take the empty corner of a table of pandas for no heading."""
        for raw in self.document.findall(nodes.raw):
            if "<th></th>" in raw.astext():
                text = raw.astext().replace("<th></th>", "<td></td>")
                raw.children = [nodes.Text(text)]


class KernelFunctions(SphinxPostTransform):
    """Names of kernel functions become links to the line where they begin."""

    default_priority = 200

    def run(self, **_: Any) -> None:
        """Look at each name that stands as code outside a link."""
        known = self.env.kernel_functions
        for literal in list(self.document.findall(nodes.literal)):
            name = literal.astext().removesuffix("()")
            if name not in known or isinstance(literal.parent, nodes.reference):
                continue
            version, file, line = known[name]
            link = nodes.reference(
                "", "", refuri=f"{TREE}/{file}?h={version}#n{line}", internal=False
            )
            link["reftitle"] = f"{file} of Linux {version.removeprefix('v')}"
            literal.replace_self(link)
            link += literal


def begin(app: Sphinx) -> None:
    """Read the lines of kernel functions."""
    versions = json.loads((HERE / "kernel.json").read_text())
    app.env.kernel_functions = {
        name: (version, file, line)
        for version, files in versions.items()
        for file, functions in files.items()
        for name, line in functions.items()
    }


def touched(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the pages of the gallery, and write what they lead to."""
    if app.builder.format != "html":
        return
    folder = app.outdir / "docs/gallery"
    folder.mkdir(parents=True, exist_ok=True)
    for notebook in (ROOT / "notebooks").rglob("*.ipynb"):
        cells = json.loads(notebook.read_text())["cells"]
        for name, devices in opens("\n".join("".join(cell["source"]) for cell in cells)).items():
            with bm.open([bm.sample(device) for device in devices]) as fs:
                explore(fs).save(folder / live(name))
    for story in stepper.TOLD:
        (folder / f"{story.name}-steps.html").write_text(stepper.page(story))
    for disk in GALLERY:
        body = gallery.body(disk, folder / f"{disk.name}-disk.html")
        yield f"docs/gallery/{disk.name}", {"title": disk.title, "body": body}, "page.html"


def finish(app: Sphinx, error: Exception | None) -> None:
    """Lead from the top of the site to its first page."""
    if error is None and app.builder.format == "html":
        # what README shows on telephones, which Sphinx does not see
        for picture in (ROOT / "docs").glob("*-narrow.*"):
            shutil.copy(picture, app.outdir / "_images")
        target = f"{app.config.root_doc}.html"
        (app.outdir / "index.html").write_text(
            f'<!doctype html><html lang="en"><title>btrfs_model</title>'
            f'<meta http-equiv="refresh" content="0; url={target}">'
            f'<a href="{target}">btrfs_model</a>\n'
        )


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx."""
    app.connect("builder-inited", begin)
    app.connect("source-read", make)
    app.connect("source-read", show)
    app.connect("html-collect-pages", touched)
    app.connect("build-finished", finish)
    app.add_transform(Outputs)
    app.add_post_transform(KernelFunctions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
