# SPDX-License-Identifier: GPL-2.0-only
"""The project's own order: sizes, licences, papers that say what is there."""

import hashlib
import json
import os
import re
import runpy
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import click
import corpus
import pytest

ROOT = corpus.PROJECT
MIB = 1 << 20


def tracked() -> list[Path]:
    """Files that belong to the project; without git, all but what is built or restored."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        # whoever the files belong to
        git = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "ls-files", "-z"]
        output = subprocess.run(git, check=True, stdout=subprocess.PIPE).stdout
        names = [ROOT / os.fsdecode(name) for name in output.split(b"\0") if name]
        return [name for name in names if name.is_file()]
    built = {"build", "dist", "out", "__pycache__", "btrfs_model.egg-info"}
    return [
        file
        for file in ROOT.rglob("*")
        if file.is_file()
        and file.suffix != ".so"
        and not any(part in built or part[0] == "." for part in file.relative_to(ROOT).parts)
    ]


def texts() -> list[tuple[Path, str]]:
    """Files of text with their content."""
    found = []
    for file in tracked():
        if file.suffix in {".zst", ".png", ".parquet", ".so"}:
            continue
        text = file.read_bytes().decode("utf-8", "replace")
        if file.suffix == ".ipynb":
            # pictures are no text
            text = re.sub(r'"image/png": "[^"]*"', "", text)
        found.append((file.relative_to(ROOT), text))
    return found


def test_sizes() -> None:
    sizes = {file: file.stat().st_size for file in tracked()}
    assert sum(sizes.values()) < 60 * MIB
    assert (
        sum(size for file, size in sizes.items() if corpus.KERNEL_DATA in file.parents) <= 25 * MIB
    )
    large = [str(file) for file, size in sizes.items() if size > 2 * MIB]
    assert not large


def test_source_files_name_their_licence() -> None:
    without = [
        str(name)
        for name, text in texts()
        if (name.suffix in {".py", ".c", ".h", ".sh"} or name.name == "Makefile")
        and "notebooks" not in name.parts
        and "SPDX-License-Identifier: GPL-2.0-only" not in "\n".join(text.splitlines()[:3])
        and text.strip()
    ]
    assert not without


# Written so that this file does not match itself.
FOREIGN = [
    r"/ho[m]e/[a-z]+/",
    r"/ro[o]t/",
    r"(?<![\w.])/wor[k]/",
    r"pypi\.or[g]",
    r"pythonhoste[d]\.org",
    r"\bTOD[O]\b",
    r"\bFIXM[E]\b",
    r"\bXX[X]\b",
    r"<<<<<<[<] ",
]


@pytest.mark.parametrize("pattern", FOREIGN)
def test_nothing_foreign(pattern: str) -> None:
    found = [
        f"{name}: {match.group()}" for name, text in texts() if (match := re.search(pattern, text))
    ]
    assert not found


def test_provenance_lists_every_file_of_the_corpus() -> None:
    described = json.loads((corpus.KERNEL_DATA / "provenance.json").read_text())["files"]
    stored = {
        str(file.relative_to(corpus.KERNEL_DATA)): file
        for file in corpus.KERNEL_DATA.rglob("*")
        if file.is_file() and file.parent != corpus.KERNEL_DATA
    }
    assert set(stored) == set(described)
    for name, file in stored.items():
        raw = file.read_bytes()
        assert len(raw) == described[name]["bytes"], name
        assert hashlib.sha256(raw).hexdigest() == described[name]["sha256"], name


def test_streams_of_the_corpus_have_the_recorded_hash() -> None:
    checked = 0
    for name in corpus.cases():
        if not name.startswith(("send/", "features/")):
            continue
        for _, kernel, record in corpus.records(name):
            if record.get("file") and corpus.has(name, record["file"]):
                digest = hashlib.sha256(corpus.stream(name, record["file"])).hexdigest()
                assert digest == record["sha256"], (name, kernel, record["file"])
                checked += 1
    assert checked > 500


# The papers for users and for those who work on the project.
DOCS = sorted(str(name.relative_to(ROOT)) for name in (ROOT / "docs").rglob("*.md"))
PAPERS = [
    "README.md",
    "CHANGELOG.md",
    "tests/README.md",
    "CONTRIBUTING.md",
    "notebooks/README.md",
    *DOCS,
]


@pytest.mark.claim("The papers name files, folders and `make` targets that exist.")
@pytest.mark.parametrize("name", PAPERS)
def test_readme_names_what_is_there(name: str) -> None:
    readme, there = (ROOT / name).read_text(), parts_of_a_clone()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"(?:^|`)make ([a-z][a-z-]*)", readme, re.MULTILINE):
        assert target in targets, f"make {target}"
    for path in re.findall(r"\]\(([^)#:]+)\)", readme):
        assert ((ROOT / name).parent / path).exists(), path
    for path in re.findall(
        r"`((?:btrfs_model|tests|notebooks|data|bench|native|scripts|docs)/[\w./-]+)`", readme
    ):
        assert path.rstrip("/") in there, path


@pytest.mark.claim("The papers in `docs` name functions that exist.")
@pytest.mark.parametrize("name", DOCS)
def test_docs_name_files_and_functions_of_the_code(name: str) -> None:
    """Paths may be below the package; a function is one if the code, or a comment, names it."""
    paper, there = (ROOT / name).read_text(), parts_of_a_clone()
    folders = {path.split("/")[0] for path in there if "/" in path}
    folders |= {path.split("/")[1] for path in there if re.match(r"btrfs_model/\w+/", path)}
    files = {path.rsplit("/", 1)[-1] for path in there}
    for path in re.findall(r"`([\w./-]+)`", paper):
        if "/" in path and path.split("/")[0] in folders:
            path = path.rstrip("/")
            assert path in there or f"btrfs_model/{path}" in there, path
        elif path.endswith(".py"):
            assert path in files, path
    code = "".join(
        text for file, text in texts() if file.parts[0] in ("btrfs_model", "native", "tests")
    )
    for function in re.findall(r"`(\w+)\(\)`", paper):
        assert re.search(rf"\b{function}\(", code), f"{function}()"


def test_the_page_of_claims_is_that_of_the_tests() -> None:
    claims = runpy.run_path(str(ROOT / "scripts" / "claims.py"))
    assert claims["PAGE"].read_text() == claims["page"](), "run scripts/claims.py"
    assert all(len(sentence) < 300 for _, sentence, _ in claims["claims"]())


def parts_of_a_clone() -> set[str]:
    """Files and folders of a fresh clone, and what git ignores because a command makes it."""
    files = [file.relative_to(ROOT) for file in tracked()]
    folders = {folder for file in files for folder in file.parents}
    ignored = (ROOT / ".gitignore").read_text().split()
    return {*map(str, files), *map(str, folders), *(line.strip("/") for line in ignored)}


def test_what_is_built_or_restored_is_no_part_of_a_clone() -> None:
    there = parts_of_a_clone()
    assert "tests/.cache" in there and "tests/unit/test_repository.py" in there and "docs" in there
    assert not any(path.startswith("tests/.cache/") for path in there)
    assert "btrfs_model/no_such_file.py" not in there


def sections(notebook: Path) -> list[tuple[str, list[str]]]:
    """The headings of a notebook, each with the kinds of what stands below it."""
    found: list[tuple[str, list[str]]] = []
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            found[-1][1].append("code")
            continue
        for line in "".join(cell["source"]).splitlines():
            if line.startswith("#"):
                found.append((line.strip("# "), []))
            elif line.strip():
                found[-1][1].append("text")
    return found


@pytest.mark.parametrize(
    "name", sorted((ROOT / "notebooks").rglob("*.ipynb")), ids=lambda p: p.stem
)
def test_headings_of_notebooks_stand_above_their_code(name: Path) -> None:
    """But for the exercises at the end a section has code, below its heading."""
    *all_but_the_last, _ = sections(name)
    without = [heading for heading, below in all_but_the_last if "code" not in below]
    assert set(without) <= {"To try"}


def commands_of(paper: str) -> list[str]:
    """The lines of code blocks that call the command, without what the shell does with them."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", paper, re.MULTILINE | re.DOTALL)
    lines = [
        line.strip().removeprefix(".venv/bin/")
        for text in blocks
        for line in text.replace("\\\n", " ").split("\n")
    ]
    added = tuple(
        f"btrfs-model {name} " for name in re.findall(r'(?m)^\+    "([\w-]+)": \(', paper)
    )
    return [
        re.split(r" [|>#] | && ", line)[0]
        for line in lines
        if line.startswith("btrfs-model ") and not line.startswith(added or "-")
    ]


@pytest.mark.claim("The commands in the papers parse.")
@pytest.mark.parametrize("name", PAPERS)
def test_commands_of_papers_parse(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command with its arguments and options is one that the command line takes."""
    from btrfs_model.cli import cli

    monkeypatch.chdir(tmp_path)
    commands = commands_of((ROOT / name).read_text())
    assert commands or name not in ("README.md", "docs/a-send.md", "docs/a-commit.md")
    for line in commands:
        _, called, *arguments = shlex.split(line)
        command = cli.get_command(click.Context(cli), called)
        assert command is not None, line
        for word in arguments:
            if re.search(r"\.(img|stream|json)$", word):
                Path(word).parent.mkdir(parents=True, exist_ok=True)
                Path(word).touch()
        try:
            command.make_context(called, arguments)
        except click.ClickException as error:
            pytest.fail(f"{line}: {error.format_message()}")


def test_commands_of_papers_are_found() -> None:
    paper = "```\nbtrfs-model send a.img b | less\n.venv/bin/btrfs-model patches\nmake\n```\n"
    assert commands_of(paper) == ["btrfs-model send a.img b", "btrfs-model patches"]


def test_scripts_can_be_executed() -> None:
    for name in (".ci/run", "scripts/make_environment"):
        assert (ROOT / name).stat().st_mode & stat.S_IXUSR, name


def test_citation() -> None:
    text = (ROOT / "CITATION.cff").read_text()
    for field in ("cff-version: 1.2.0", "title:", "authors:", "version:", "license: GPL-2.0-only"):
        assert field in text
    version = re.search(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert version is not None
    assert f"version: {version[1]}\n" in text
    assert f'fallback_version = "{version[1]}"\n' in (ROOT / "pyproject.toml").read_text()
