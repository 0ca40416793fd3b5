# SPDX-License-Identifier: GPL-2.0-only
"""find of findutils 4.9."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from btrfs_model.scripts.files import Stat
from btrfs_model.scripts.program import Program, say
from btrfs_model.scripts.programs.find.expression import (
    Expression,
    QuitFind,
    WrongExpressionError,
)
from btrfs_model.scripts.programs.find.walk import Item, names_in

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

_ACTIONS: Final = {"-print", "-print0", "-exec", "-execdir", "-ok", "-okdir", "-ls", "-delete",
                   "-printf", "-fprint", "-quit"}  # fmt: skip
"""What is done in the place of printing; -quit alone prints before."""
_EVERYTHING: Final = 1 << 30


def _find(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    words = list(arguments)
    links = "P"
    while words and words[0] in ("-L", "-H", "-P"):
        links = words.pop(0)[1]
    starts = []
    while words and not words[0].startswith("-") and words[0] not in ("(", "!", ","):
        starts.append(words.pop(0))
    with ExitStack() as outputs:
        try:
            search = _Search(computer, shell, words, links, outputs)
        except WrongExpressionError as error:
            say(shell, f"find: {error}\n")
            return 1
        status = 0
        try:
            for start in starts or ["."]:
                status |= search.start(start)
        except QuitFind:
            pass
        return status | search.expression.finish()


class _Search:
    """What find goes through.

    `links`: P for no symbolic link is followed, H for those that are told, L for all.
    """

    def __init__(
        self, computer: Computer, shell: Shell, words: list[str], links: str, outputs: ExitStack
    ) -> None:
        self.computer, self.shell, self.links = computer, shell, links
        self.least, self.most = 0, _EVERYTHING
        self.last_first = self.stays = False
        kept = self._without_options(words)
        self.expression = Expression(computer, shell, kept, outputs, follows=links == "L")
        self.prints = not _ACTIONS - {"-quit"} & set(kept)
        self.last_first |= "-delete" in kept

    def _without_options(self, words: list[str]) -> list[str]:
        kept, at = [], 0
        while at < len(words):
            word = words[at]
            at += 1
            if word in ("-mindepth", "-maxdepth"):
                if at >= len(words):
                    raise WrongExpressionError(f"missing argument to `{word}'")
                number = int(words[at])
                at += 1
                if word == "-mindepth":
                    self.least = number
                else:
                    self.most = number
            elif word in ("-depth", "-d"):
                self.last_first = True
            elif word in ("-xdev", "-mount"):
                self.stays = True
            elif word != "-noleaf":
                kept.append(word)
        return kept

    def start(self, path: str) -> int:
        """Go through one path that is told; return an exit status."""
        seen = self._stat(path, follow=self.links != "P")
        if seen is None:
            say(self.shell, f"find: '{path}': No such file or directory\n")
            return 1
        status = 0
        for item in self._items(Item(path, seen, 0, path)):
            if item.level < self.least:
                continue
            found = self.expression.test(item)
            if found and self.prints:
                self.shell.write(item.path + "\n")
            status |= item.failed
        return status

    def _stat(self, path: str, *, follow: bool) -> Stat | None:
        seen = self.computer.stat(path, follow=follow)
        return self.computer.stat(path, follow=False) if seen is None and follow else seen

    def _items(self, item: Item) -> Iterator[Item]:
        if not self.last_first:
            yield item
        if item.seen.is_dir and item.level < self.most and not item.pruned:
            for inner in names_in(self.computer, item.path):
                seen = self._stat(inner, follow=self.links == "L")
                if seen is None:
                    continue
                below = Item(inner, seen, item.level + 1, item.start)
                if self.stays and seen.device != item.seen.device:
                    yield below
                else:
                    yield from self._items(below)
        if self.last_first:
            yield item


PROGRAMS: Final[dict[str, Program]] = {"find": _find}
