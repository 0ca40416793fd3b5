# SPDX-License-Identifier: GPL-2.0-only
"""What is promised of a filesystem after a crash: rules, each with its source.

Between two calls there are states that processes see. A crash may leave any of them that is not
older than the last commit, mixed, as far as no rule forbids it. Rules of POSIX and of Linux' manual
pages are about what was fsynced; those of btrfs go further: they are what its developers mend when
it is broken. Where kernels of today break a part of a rule, that part is a rule by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from btrfs_model.experiments.crashes.seen import Name, Ref, State, names_of, path_of

Content = tuple[bytes, int]
"""What a file holds, and its size."""


class Rule(NamedTuple):
    """A promise: whose it is, what it says, and where that stands."""

    whose: str
    says: str
    source: str


_FSYNC: Final = "fsync(2)"
_LOGGED: Final = "btrfs_log_inode_parent(), Linux 6.18"

RULES: Final[dict[str, Rule]] = {
    "mount": Rule("btrfs", "the next mount goes well", "btrfs_recover_log_trees(), Linux 6.18"),
    "check": Rule("btrfs", "after the mount a check finds nothing", "btrfs-check(8)"),
    "fsync-inode": Rule("POSIX", "what was fsynced, and kept a name, is there", _FSYNC),
    "fsync-data": Rule("POSIX", "each byte and the size of a file are those of its fsync, or later",
                       _FSYNC),
    "fsync-attributes": Rule("Linux", "so are mode, owner and extended attributes", _FSYNC),
    "fsync-entries": Rule("Linux", "a directory has the entries of its fsync, but for those that "
                          "calls changed since", _FSYNC),
    "fsync-names": Rule("btrfs", "a file has the names of its fsync, as far as it kept them",
                        _LOGGED),
    "fsync-old-names": Rule("btrfs", "a file has no name that a rename of it took before its fsync",
                            _LOGGED),
    "fsync-taken-names": Rule("btrfs", "nor one that unlink, or a rename of another file to it, "
                              "took", _LOGGED),
    "fsync-gone": Rule("btrfs", "what had no name any more when it was fsynced has none",
                       _LOGGED),
    "inode": Rule("btrfs", "what had a name all the time is there", "rename(2)"),
    "inode-unlinked": Rule("btrfs", "so is what lost one of its names to unlink, or to a rename of "
                           "another file to it", "unlink(2)"),
    "name": Rule("btrfs", "a name that was there all the time is there", "rename(2)"),
    "one-name": Rule("btrfs", "what had one name all the time has one", "rename(2)"),
    "never-there": Rule("btrfs", "no name is there that never was", "rename(2)"),
    "content": Rule("btrfs", "a file has the content of one state, or none where it is new; a "
                    "symbolic link has its target", "log_extent_csums(), Linux 6.18"),
    "content-cut": Rule("btrfs", "old content is not cut off where a later one ended",
                        "btrfs_log_inode(), Linux 6.18"),
    "attributes": Rule("btrfs", "mode, owner and extended attributes are together those of one "
                       "state", "btrfs_log_inode(), Linux 6.18"),
    "subvolume": Rule("btrfs", "a subvolume without a log is as it was committed",
                      "btrfs_recover_log_trees(), Linux 6.18"),
}  # fmt: skip
"""What is promised, by name."""


class Broken(NamedTuple):
    """A rule that a state breaks, and by what."""

    rule: str
    what: str


@dataclass(frozen=True)
class History:
    """What processes saw, from a commit to a crash.

    `states`: one after each call; the first may be older than the commit, none of the others.
    `fsynced`: the last state in which an inode was fsynced, or in which all was made to last.
    `unwritten`: contents that files had before the first state, and whose successors no call has
    made to last: a commit does not write data back.
    """

    states: Sequence[State]
    fsynced: Mapping[Ref, int]
    unwritten: Mapping[Ref, list[Content]]

    @cached_property
    def names(self) -> list[set[Name]]:
        """Names of each state."""
        return [names_of(state) for state in self.states]

    @cached_property
    def taken(self) -> set[Name]:
        """Names that inodes lost and got no other one for: by unlink, or a rename to them."""
        found: set[Name] = set()
        for before, after in zip(self.names, self.names[1:], strict=False):
            moved = {name[2] for name in after - before}
            found |= {name for name in before - after if name[2] not in moved}
        return found

    def since(self, ref: Ref) -> int:
        """Return the state that what is seen of an inode may be of at the earliest."""
        return self.fsynced.get(ref, 0)

    def broken(self, result: State) -> Iterator[Broken]:
        """Yield which rules a state after the mount breaks."""
        yield from self._lost(result)
        for ref in result:
            yield from self._attributes(ref, result)
            yield from self._content(ref, result)
        for ref, at in self.fsynced.items():
            if ref not in self.states[at] and ref in result:
                yield Broken("fsync-gone", f"{self._path(ref)} was fsynced without a name, and is "
                             "there again")  # fmt: skip
            if all(ref in state for state in self.states[at:]):
                yield from self._fsynced(ref, at, result)

    def _path(self, ref: Ref, at: int = -1) -> str:
        states = [self.states[at], *reversed(self.states)]
        return path_of(next((state for state in states if ref in state), {}), ref)

    def _name(self, name: Name) -> str:
        above = self._path(name[0])
        shown = name[1].decode("utf-8", "backslashreplace")
        return shown if above == "." else f"{above}/{shown}"

    def _lost(self, result: State) -> Iterator[Broken]:
        names, victims = names_of(result), {name[2] for name in self.taken}
        for ref in sorted(set.intersection(*map(set, self.states)) - result.keys()):
            yield Broken("inode-unlinked" if ref in victims else "inode",
                         f"{self._path(ref)} is lost")  # fmt: skip
        for name in sorted(set.intersection(*self.names) - names):
            yield Broken("name", f"{self._name(name)} is lost")
        for name in sorted(names.difference(*self.names)):
            yield Broken("never-there", f"{self._name(name)} was never there")
        counts = [_names_each(names) for names in self.names]
        for ref, count in _names_each(names).items():
            if count > 1 and all(one.get(ref) == 1 for one in counts):
                yield Broken("one-name", f"{self._path(ref)} has {count} names")

    def _attributes(self, ref: Ref, result: State) -> Iterator[Broken]:
        states = [state[ref] for state in self.states[self.since(ref) :] if ref in state]
        inode = result[ref]
        parts = [(one.mode, one.owner, one.device, one.xattrs) for one in states]
        mine = (inode.mode, inode.owner, inode.device, inode.xattrs)
        if mine in parts or not parts:
            return
        mixed = all(value in {part[at] for part in parts} for at, value in enumerate(mine))
        rule = "attributes" if mixed or ref not in self.fsynced else "fsync-attributes"
        yield Broken(rule, f"{self._path(ref)}: mode {inode.mode:o}, owner {inode.owner} and "
                     f"attributes {sorted(inode.xattrs)} together are of no state")  # fmt: skip

    def _content(self, ref: Ref, result: State) -> Iterator[Broken]:
        since, inode = self.since(ref), result[ref]
        contents = [] if ref in self.fsynced else list(self.unwritten.get(ref, []))
        contents += [(state[ref].data, state[ref].size) for state in self.states[since:]
                     if ref in state]  # fmt: skip
        if not contents:
            return  # that it is there is what is wrong
        # symlink(2) makes none that is empty
        if ref not in self.states[since] and not inode.is_symlink:
            contents.append((b"", 0))
        if (inode.data, inode.size) in contents or inode.is_dir:
            return
        path = self._path(ref)
        if not inode.is_file:
            yield Broken("content", f"{path} has a target that it never had")
            return
        old = contents[0][0]
        sizes = {state[ref].size for state in self.states if ref in state}
        if inode.size in sizes and inode.data == old[: inode.size]:
            yield Broken("content-cut", f"{path}: content of {len(old):,} bytes is cut off at "
                         f"{inode.size:,}")  # fmt: skip
            return
        rule = "content"
        if ref in self.fsynced and not _is_of(inode.data, inode.size, contents):
            rule = "fsync-data"
        wanted = ", ".join(sorted({f"{size:,}" for _, size in contents}))
        yield Broken(rule, f"{path} has {inode.size:,} bytes that it never had; "
                     f"its sizes were {wanted}")  # fmt: skip

    def _fsynced(self, ref: Ref, at: int, result: State) -> Iterator[Broken]:
        """Entries of a directory, names of a file, that stayed since the fsync."""
        if ref not in result:
            # what had a name all the time is lost by another rule
            if any(ref not in state for state in self.states):
                yield Broken("fsync-inode", f"{self._path(ref, at)} is lost")
            return
        side = 0 if self.states[at][ref].is_dir else 2

        def part(names: set[Name]) -> set[Name]:
            return {name for name in names if name[side] == ref}

        wanted, found = part(self.names[at]), part(names_of(result))
        moving = {name[:2] for later in self.names[at:] for name in part(later) ^ wanted}
        path = self._path(ref, at)
        for name in sorted(wanted ^ found):
            if name[:2] in moving:
                continue
            missing = name in wanted
            rule = "fsync-entries"
            if side:
                old = "fsync-taken-names" if name in self.taken else "fsync-old-names"
                rule = "fsync-names" if missing else old
            yield Broken(
                rule,
                f"{path} was fsynced: its {'entry' if not side else 'name'} "
                f"{self._name(name)} is {'missing' if missing else 'there again'}",
            )


def _names_each(names: set[Name]) -> dict[Ref, int]:
    """Count the names of each inode."""
    found: dict[Ref, int] = {}
    for name in names:
        found[name[2]] = found.get(name[2], 0) + 1
    return found


def _is_of(data: bytes, size: int, contents: Sequence[Content]) -> bool:
    """Whether the size and each byte are of one of several contents."""
    if size not in {length for _, length in contents} or len(data) != size:
        return False
    return all(
        any(at < len(one) and one[at] == byte for one, _ in contents)
        for at, byte in enumerate(data)
    )
