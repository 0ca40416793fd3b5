# SPDX-License-Identifier: GPL-2.0-only
"""The container of the course, and that of a clone: parsed, and built where there is a builder."""

import json
import re
import shlex
import shutil
import subprocess

import click
import corpus
import pytest
from dockerfile_parse import DockerfileParser

from btrfs_model.cli import cli

FOLDER = corpus.PROJECT / ".devcontainer"
FILE = DockerfileParser(str(FOLDER / "Dockerfile"))
ROWS = [(row["instruction"], row["value"]) for row in FILE.structure]


def test_it_has_what_readme_says() -> None:
    readme = (corpus.PROJECT / "README.md").read_text()
    (needed,) = re.findall(r"On Debian 12 or later, with `apt-get install ([^`]+)`", readme)
    (installed,) = (value for what, value in ROWS if what == "RUN" and "apt-get" in value)
    assert set(needed.split()) <= set(installed.split())
    assert [value for what, value in ROWS if what == "FROM"] == [
        "debian:12-slim AS tools", "tools AS course",
    ]  # fmt: skip


def test_it_starts_the_course_as_an_ordinary_user() -> None:
    names = [what for what, _ in ROWS]
    assert names.index("USER") < names.index("CMD")
    shell, flag, line = json.loads(dict(ROWS)["CMD"])
    assert (shell, flag) == ("sh", "-c")
    first, jupyter = line.split(" && exec ")
    _, name, *arguments = shlex.split(first)
    command = cli.get_command(click.Context(cli), name)
    assert command is not None and command.make_context(name, arguments)
    assert shlex.split(jupyter)[-1] == "btrfs-course"
    assert dict(ROWS)["EXPOSE"] in (FOLDER / "devcontainer.json").read_text()


def test_a_clone_in_a_container() -> None:
    told = json.loads((FOLDER / "devcontainer.json").read_text())
    build = told["build"]
    assert (FOLDER / build["dockerfile"]).is_file()
    assert f"AS {build['target']}" in FILE.content
    assert (FOLDER / build["context"]).resolve() == corpus.PROJECT.resolve()
    assert f"useradd --create-home --shell /bin/bash {told['remoteUser']}" in FILE.content
    make, _ = told["postCreateCommand"].split(" && ")
    assert re.search(
        rf"^{make.removeprefix('make ')}:", (corpus.PROJECT / "Makefile").read_text(), re.M
    )


def works(builder: str) -> bool:
    """Whether it is there, and not as a client alone."""
    if shutil.which(builder) is None:
        return False
    return subprocess.run([builder, "info"], capture_output=True, check=False).returncode == 0


@pytest.mark.claim("The course is built as a container.", "docker or podman")
def test_it_is_built() -> None:
    builder = next(filter(works, ("docker", "podman")), None)
    if builder is None:
        pytest.skip("there is neither docker nor podman, with an engine that runs")
    command = [builder, "build", "-q", "-f", str(FOLDER / "Dockerfile"), str(corpus.PROJECT)]
    image = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    there = [builder, "run", "--rm", image, "btrfs-model", "course", "--copy-only"]
    assert "copied" in subprocess.run(there, check=True, capture_output=True, text=True).stderr
