# SPDX-License-Identifier: GPL-2.0-only
"""A change of a kernel: a commit of its tree, a patch in a file, mails with patches."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from email import message_from_bytes, policy
from itertools import pairwise
from pathlib import Path

from btrfs_model.base.errors import KernelFailedError

_MAIL = re.compile(rb"^From \S+ .*\d{4}$", re.MULTILINE)
_IS_MAIL = re.compile(rb"(From \S+ .*\n)?[A-Za-z-]+: ")
_PATCH = re.compile(rb"^(diff --git |--- \S)", re.MULTILINE)
_ID = re.compile(rb"^(?:From|commit) ([0-9a-f]{40})\b", re.MULTILINE)
_TAGS = re.compile(r"^(\[[^]]*\]\s*)+")


@dataclass(frozen=True)
class Change:
    """A change of a kernel.

    Attributes
    ----------
    titles : tuple of str
        First line of the message of each patch, as far as they are known.
    commit : str
        Id of a single one; empty where it is not known.
    diff : bytes
        What ``git apply`` reads.
    parent : str
        The commit of a git tree that it follows; empty where it is of a tree as it lies.
    """

    titles: tuple[str, ...]
    commit: str
    diff: bytes
    parent: str = ""


def change_of(tree: Path, name: str) -> Change:
    """Find a change.

    Parameters
    ----------
    tree : Path
        Of a kernel.
    name : str
        A file, as `git show`, `git format-patch` and `diff` write it and as mails bring it; or a
        commit of the tree.

    Raises
    ------
    KernelFailedError
        When it is neither, or no patch is in it.
    """
    path, parent = Path(name), ""
    if path.is_file():
        text = path.read_bytes()
    else:
        parent = _git(tree, "rev-parse", "--verify", "--quiet", f"{name}^1").decode().strip()
        if not parent:
            raise KernelFailedError(f"{name}: no file, and no commit of {tree} that has a parent")
        text = _git(tree, "show", "--format=commit %H%n%n    %s", "--no-ext-diff", "--no-color",
                    "--binary", "--first-parent", "--src-prefix=a/", "--dst-prefix=b/",
                    name)  # fmt: skip
    titles, diff = _from_mails(text) if _IS_MAIL.match(text) else (_title_of_show(text), text)
    if not _PATCH.search(diff):
        raise KernelFailedError(f"{name}: no patch is in it")
    ids = _ID.findall(text)
    return Change(tuple(titles), ids[0].decode() if len(ids) == 1 else "", diff, parent)


def _git(tree: Path, *arguments: str) -> bytes:
    """Ask git of a tree; nothing where it fails."""
    command = ["git", "--git-dir", str(tree / ".git" if (tree / ".git").exists() else tree)]
    try:
        return subprocess.run([*command, *arguments], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return b""


def _title_of_show(text: bytes) -> list[str]:
    head = text[: found.start()] if (found := _PATCH.search(text)) else text
    line = re.search(rb"^    (.+)$", head, re.MULTILINE)
    return [line[1].decode("utf-8", "replace").strip()] if line else []


def _from_mails(text: bytes) -> tuple[list[str], bytes]:
    """Return the titles of the patches in mails, and all patches, decoded."""
    titles, bodies = [], []
    starts = [found.start() for found in _MAIL.finditer(text)] or [0]
    for start, end in pairwise([*starts, len(text)]):
        message = message_from_bytes(text[start:end], policy=policy.default)
        for part in message.walk():
            body = part.get_payload(decode=True)
            if isinstance(body, bytes) and _PATCH.search(body):
                titles.append(" ".join(_TAGS.sub("", str(message["subject"] or "")).split()))
                bodies.append(body.replace(b"\r\n", b"\n"))
    return titles, b"\n".join(bodies)
