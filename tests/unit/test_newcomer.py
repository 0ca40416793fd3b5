# SPDX-License-Identifier: GPL-2.0-only
"""What papers tell newcomers to type, pasted: from a wheel in an empty folder, and from a clone.

Blocks of README and of ``docs/extending.md`` that are marked as a language are run as they stand,
in their order, in one folder; one that is marked as a file is written there. Blocks of README
without a mark are for a clone, take minutes or need another kernel, and say so.
"""

import ast
import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import corpus
import nbformat
import pytest
from test_repository import tracked

from btrfs_model.base.samples import packed_sample

ROOT = corpus.PROJECT
BLOCK = re.compile(r"^```(\w+)(?: ([\w.]+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAMS = "/usr/local/bin:/usr/bin:/bin"


def blocks(paper: str) -> list[tuple[str, str, str]]:
    """Blocks of a paper that are marked: the language, what else the mark says, the text."""
    return BLOCK.findall((ROOT / paper).read_text())


def values(code: str) -> Iterator[tuple[str, object]]:
    """Expressions of a block with what a comment says that they are."""
    lines = code.splitlines()
    for node in ast.parse(code).body:
        said = re.search(r"  # (.+)$", lines[(node.end_lineno or 1) - 1])
        if isinstance(node, ast.Expr) and said:
            try:
                yield ast.unparse(node), ast.literal_eval(said[1])
            except (SyntaxError, ValueError):
                continue


def run(command: list[str], **how: Any) -> str:
    """Run a program; what it printed, also where it fails."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        **{"timeout": 600, **how},
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(command)[:200]}\n{done.stdout[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with a wheel, built without git and installed offline."""
    if not shutil.which("gcc"):
        pytest.skip("a wheel is compiled by gcc, which is not there")
    folder = tmp_path_factory.mktemp("newcomer")
    source = folder / "source"
    for file in tracked():
        place = source / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    shutil.rmtree(source / "tests")
    offline = {**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "CC": "gcc"}
    pip = [sys.executable, "-m", "pip", "-q"]
    run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)],
        env=offline)  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    shutil.rmtree(source)
    assert wheel.stat().st_size < 7 << 20
    environment = folder / "environment"
    run([sys.executable, "-m", "venv", "--without-pip", str(environment)])
    (site,) = environment.glob("lib/python*/site-packages")
    # libraries are those of this environment; the package itself is not found through this
    libraries = [one for one in sys.path if Path(one).name in ("site-packages", "dist-packages")]
    (site / "libraries.pth").write_text("\n".join(libraries) + "\n")
    python = str(environment / "bin/python")
    run([*pip, "--python", python, "install", "--no-deps", str(wheel)], env=offline)
    (data,) = environment.glob("lib/python*/site-packages/btrfs_model/data")
    samples = [file.stat().st_size for file in data.rglob("*.zst")]
    assert len(samples) > 20 and sum(samples) < 2_500_000
    return environment / "bin"


@pytest.fixture(params=["installed", "clone"])
def programs(request: pytest.FixtureRequest) -> Path:
    """Where the command is."""
    if request.param == "installed":
        return Path(request.getfixturevalue("installed"))
    if not (Path(sys.executable).parent / "btrfs-model").exists():
        pytest.skip("the clone is not installed in this environment")
    return Path(sys.executable).parent


@pytest.fixture
def newcomer(programs: Path, tmp_path: Path) -> dict[str, Any]:
    """How programs are run: an empty folder, no network, and the programs of a user."""
    home, empty = tmp_path / "home", tmp_path / "empty"
    home.mkdir()
    empty.mkdir()
    environment = {
        "HOME": str(home), "PATH": f"{programs}:{PROGRAMS}", "LC_ALL": "C.UTF-8",
        "TMPDIR": str(tmp_path), "http_proxy": "http://127.0.0.1:9", "MPLCONFIGDIR": str(home),
    }  # fmt: skip
    how = {"cwd": empty, "env": environment, "stdin": subprocess.DEVNULL}
    where = run(["python", "-P", "-c", "import btrfs_model; print(btrfs_model.__file__)"], **how)
    there = programs.parent if programs.parent.name == "environment" else ROOT
    assert Path(where.strip()).is_relative_to(there)
    return how


def paste(kind: str, code: str, how: dict[str, Any], timeout: float = 600) -> str:
    """Run a block; what it printed."""
    if kind == "sh":
        return run(["bash", "-euo", "pipefail", "-c", code], **how, timeout=timeout)
    checks = "".join(f"assert ({text}) == {value!r}\n" for text, value in values(code))
    return run(["python", "-c", code + "\n" + checks], **how)


@pytest.mark.claim(
    "README's commands and Python run as pasted, from an installed wheel in an empty folder and "
    "from a clone, without network and without /usr/sbin: a minute for each command that it opens "
    "with, five for its first steps."
)
def test_readme_runs_as_pasted(newcomer: dict[str, Any], request: pytest.FixtureRequest) -> None:
    before = os.environ.get("BTRFS_MODEL_TESTS_PASSED", "")
    if "clone" in request.node.name and not corpus.LONG and not Path(before or "-").is_file():
        pytest.skip("from a clone after a run that had the wheel, or with BTRFS_MODEL_TESTS=long")
    found = blocks("README.md")
    assert {kind for kind, *_ in found} == {"sh", "python"}
    opening, start = (ROOT / "README.md").read_text().split("## Quick start\n")
    first = BLOCK.findall(start.split("\n## ")[0])[0][2]
    assert "made: part Quick start" in (ROOT / "docs/start.md").read_text()
    for kind, _, code in found:
        timeout = 60 if code in opening else 300 if code in first else 600
        paste(kind, code, newcomer, timeout=timeout)
    empty, home = newcomer["cwd"], Path(newcomer["env"]["HOME"])
    assert "<svg" in (empty / "out/report.html").read_text()
    # what README opens with, by reader: each command makes its picture
    for picture in ("out/send-utimes.png", "what-if/send-readahead.png", "sample.svg"):
        assert (empty / picture).exists(), picture
    assert "<title" in (empty / "sample.html").read_text()
    assert (empty / "copy.img").exists() and (empty / "recovered.img").exists()
    kept = home / ".cache/btrfs-model"
    assert 0 < sum(file.stat().st_blocks * 512 for file in kept.iterdir()) < 128 << 20
    # as README says of the shell's completion
    newcomer["env"] |= {"COMP_WORDS": "btrfs-model logical-", "COMP_CWORD": "1",
                        "_BTRFS_MODEL_COMPLETE": "bash_complete"}  # fmt: skip
    assert run(["btrfs-model"], **newcomer) == "plain,logical-resolve\n"


@pytest.mark.claim(
    "Each example of `docs/extending.md` runs as it stands: a limit, a workload, a device, a cost, "
    "a release, a command and a toggle of your own."
)
@pytest.mark.parametrize("programs", ["clone"], indirect=True)
def test_extending_runs_as_it_stands(newcomer: dict[str, Any], tmp_path: Path) -> None:
    empty, printed, changed = newcomer["cwd"], {}, tmp_path
    for number, (kind, mark, code) in enumerate(blocks("docs/extending.md")):
        if kind == "diff":
            changed = tmp_path / f"changed{number}"
            copy_with(code, changed)
        elif mark in ("toggle", "release", "command"):
            kernels = {"BTRFS_MODEL_KERNELS": "python"} if mark == "toggle" else {}
            how = {**newcomer, "env": newcomer["env"] | {"PYTHONPATH": str(changed)} | kernels}
            printed[mark] = paste(kind, code, how)
        elif mark:
            (empty / mark).write_text(code)
        else:
            if "many-files" in code:
                install(empty, newcomer)
            printed[f"{kind} {number}"] = paste(kind, code, newcomer)
    one, other = re.findall(r"^(\d+) commands", printed["python 1"], re.MULTILINE)
    assert int(one) < int(other)
    assert re.search(r"paths put together: \d+ before, \d+ after", printed["python 3"])
    assert any(" on guess\n" in text for text in printed.values())
    assert '{"size": 0}' in printed["command"] and "v7.2.7" in printed["release"]
    for line in printed["toggle"].strip().splitlines():
        assert f"`{line}`" in (ROOT / "docs/extending.md").read_text()
    assert {"mine/results.csv", "guessed/results.csv"} <= {
        str(file.relative_to(empty)) for file in empty.rglob("results.csv")
    }


@pytest.mark.claim("The commands and the Python of other pages run as pasted too.")
@pytest.mark.parametrize("programs", ["installed"], indirect=True)
@pytest.mark.parametrize(
    "paper",
    [
        "docs/how-to/explain.md",
        "docs/how-to/plan.md",
        "docs/how-to/streams.md",
        "docs/how-to/diff.md",
        "docs/how-to/rescue.md",
        "docs/how-to/images.md",
        "docs/how-to/log.md",
        "docs/how-to/waste.md",
        "docs/how-to/whatif.md",
        "docs/how-to/exploring.md",
        "docs/a-send.md",
        "docs/results.md",
    ],
)
def test_pages_run_as_pasted(newcomer: dict[str, Any], paper: str) -> None:
    sample = "btrfs-model sample kernel/send/send-utimes/n200 -o disk.img"
    found = [code for _, _, code in blocks(paper)]
    assert found
    if "disk.img" in "".join(found) and sample not in found[0]:
        paste("sh", sample, newcomer)
    for kind, _, code in blocks(paper):
        paste(kind, code, newcomer)


def test_the_course_is_copied_and_what_is_there_stays(installed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "course"
    command = [str(installed / "btrfs-model"), "course", str(folder), "--copy-only"]
    run(command)
    there = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    ours = {str(file.relative_to(ROOT / "notebooks")) for file in tracked()
            if file.is_relative_to(ROOT / "notebooks")}  # fmt: skip
    assert there == ours
    mine = folder / "course/00-ten-files.ipynb"
    mine.write_text("mine")
    (folder / "README.md").unlink()
    run(command)
    assert mine.read_text() == "mine" and (folder / "README.md").exists()


def test_samples_of_the_notebooks_are_in_a_wheel() -> None:
    (data,) = (
        ast.literal_eval(node.value) for node in ast.parse((ROOT / "setup.py").read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DATA"
    )  # fmt: skip
    packed = {path for pattern in data for path in (ROOT / "data").glob(pattern)}
    asked = {name for path in (ROOT / "notebooks").rglob("*.ipynb")
             for name in re.findall(r'sample\(\\?"([^"\\]+)', path.read_text())}  # fmt: skip
    assert asked
    for name in asked:
        assert packed_sample(name) in packed, name


LAB = """async () => {
    const app = window.jupyterapp;
    await app.restored;
    const panel = app.shell.currentWidget;
    await panel.context.ready;
    await panel.sessionContext.ready;
    await app.commands.execute("notebook:run-all-cells");
    return panel.content.model.sharedModel.cells.map(cell => cell.toJSON());
}"""


@pytest.fixture
def lab(installed: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a JupyterLab whose Python has the wheel, on a copy of the notebooks."""
    pytest.importorskip("jupyterlab")
    copy = tmp_path / "notebooks"
    run([str(installed / "btrfs-model"), "course", str(copy), "--copy-only"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(installed / "python"), "-P", "-m", "jupyterlab", "--no-browser", "--allow-root",
        "--expose-app-in-browser", "--ServerApp.token=", f"--ServerApp.port={port}",
        f"--app-dir={sys.prefix}/share/jupyter/lab", f"--ServerApp.root_dir={copy}",
        "--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    own = {"HOME": str(tmp_path), "JUPYTER_PATH": f"{sys.prefix}/share/jupyter"}
    environment = {name: it for name, it in os.environ.items() if "BTRFS_MODEL" not in name} | own
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert server.poll() is None, (tmp_path / "log").read_text()[-4000:]
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/lab"
    finally:
        server.terminate()
        server.wait(600)


@pytest.mark.claim(
    "Each notebook runs in JupyterLab in a browser, outside a clone, with an installed wheel.",
    "JupyterLab in Chromium",
)
def test_notebooks_in_jupyterlab(lab: str, browser: Any) -> None:
    if not corpus.LONG:
        pytest.skip("takes minutes: BTRFS_MODEL_TESTS=long")
    names = sorted(str(one.relative_to(ROOT)) for one in (ROOT / "notebooks").rglob("*.ipynb"))
    assert names
    for name in names:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(600_000)
        page.goto(f"{lab}/workspaces/{Path(name).stem}/tree/{name.removeprefix('notebooks/')}")
        page.locator(".jp-NotebookPanel .jp-Cell").first.wait_for()
        cells = [cell for cell in page.evaluate(LAB) if cell["cell_type"] == "code"]
        outputs = [one for cell in cells for one in cell["outputs"]]
        assert [one for one in outputs if one["output_type"] == "error"] == [], name
        assert all(cell["execution_count"] for cell in cells), name
        if name.endswith("trade-offs.ipynb"):
            sliders_move(page)
        page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
        page.close()


DRAWN = """
import btrfs_model as bm
from btrfs_model.drawings.explore import explore
fs = bm.create("256M", nodesize=4096, seed=1)
fs.create("one")
fs.sync()
steps = {"one file": bm.draw(fs.subvolume(""))}
fs.create_files("", [f"file{number}" for number in range(20)])
fs.sync()
bm.draw(steps | {"more": bm.draw(fs.subvolume(""))})
"""
KEYS = ("ArrowRight", "ArrowUp", "ArrowDown")


@pytest.mark.claim(
    "In JupyterLab a keyboard goes through steps of a picture, and looks around in a page of "
    "`explore`.",
    "JupyterLab in Chromium",
)
def test_pictures_in_jupyterlab(lab: str, browser: Any, tmp_path: Path) -> None:
    new = nbformat.v4
    cells = [new.new_code_cell(code) for code in (DRAWN, "explore(fs)")]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    notebook = new.new_notebook(cells=cells, metadata=kernel)
    nbformat.write(notebook, tmp_path / "notebooks/drawn.ipynb")
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(120_000)
    page.goto(f"{lab}/tree/drawn.ipynb")
    page.locator(".jp-NotebookPanel .jp-Cell").first.wait_for()
    page.evaluate(LAB)
    steps = page.locator(".jp-NotebookPanel .btrfs-frames")
    steps.locator("input").first.focus()
    chosen = "window.jupyterapp.shell.currentWidget.content.activeCellIndex"
    cell = page.evaluate(chosen)
    for number, key in enumerate(KEYS, 1):
        page.keyboard.press(key)
        assert steps.locator("input").nth(number % 2).is_checked()
        seen = [one.is_visible() for one in steps.locator("svg").all()]
        assert seen == [number % 2 == 0, number % 2 == 1]
    assert page.evaluate(chosen) == cell
    frame = page.frame_locator(".jp-NotebookPanel iframe")
    frame.locator("#wanted").fill("file7")
    frame.locator("#wanted").press("Enter")
    frame.locator("#title", has_text="INODE_ITEM").wait_for()
    frame.locator("[aria-selected=true]", has_text="INODE_ITEM").press("ArrowDown")
    assert "INODE_REF" in (frame.locator("[aria-selected=true] > .row").text_content() or "")
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    page.close()


TITLE = """handle => {
    const drawings = handle.closest(".widget-vbox").querySelectorAll("svg");
    const seen = [...drawings].find(one => one.getClientRects().length);
    return seen.querySelector("title").textContent;
}"""


def sliders_move(page: Any) -> None:
    """The sliders that are on the screen at the end of the notebook change their charts."""
    handles = page.locator(".noUi-handle:visible")
    handles.first.wait_for(timeout=600_000)
    for handle in handles.all():
        before = handle.evaluate(TITLE)
        titles = set()
        for key in ("ArrowRight", "ArrowLeft", "ArrowLeft"):  # one may be at an end
            handle.press(key)
            page.wait_for_timeout(300)
            titles.add(handle.evaluate(TITLE))
        assert titles - {before}


def copy_with(diff: str, folder: Path) -> None:
    """Copy the package as it is here, and change it."""
    if not shutil.which("git"):
        pytest.skip("a change of the package is applied by git, which is not there")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "btrfs_model", folder / "btrfs_model", ignore=ignored)
    for name in ("data", "native"):
        (folder / name).symlink_to(ROOT / name)
    run(["git", "apply", "-p0", "-"], cwd=folder, input=diff)


def install(source: Path, how: dict[str, Any]) -> None:
    """Do what ``pip install .`` does, offline and beside this environment."""
    target = source.parent / "installed"
    shutil.copytree(source, source.parent / "package")
    run(
        [
            sys.executable,
            "-m",
            "pip",
            "-q",
            "install",
            "--no-deps",
            "--no-index",
            "--no-build-isolation",
            "--target",
            str(target),
            str(source.parent / "package"),
        ]
    )
    how["env"]["PYTHONPATH"] = str(target)


def test_values_in_comments_are_found() -> None:
    code = "a = 1  # one\na, a + 1  # 1, 2\na  # what it is\n"
    assert list(values(code)) == [("(a, a + 1)", (1, 2))]
