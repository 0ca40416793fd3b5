# SPDX-License-Identifier: GPL-2.0-only
"""What happens to filesystems that get more devices: the last part of a history.

Of Python's library alone: this also runs in guests.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from btrfs_model.kernels.inside.mounts import run
from history import wide

if TYPE_CHECKING:
    from history.making import History

_MB = 1 << 20
_ALL = "rw,subvolid=5,degraded"
_PROFILES = [
    ["single", "dup"],
    ["raid0", "raid1", "raid5", "single", "dup"],
    ["raid0", "raid1", "raid1c3", "raid5", "raid6"],
    ["raid0", "raid1", "raid10", "raid1c3", "raid1c4", "raid5", "raid6"],
]
"""Those that one device, two, three, four and more allow."""


class Several:
    """More devices, other profiles, and what happens then; a device may get lost."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.choice = history.choice
        self._balanced = history.filters
        history.filters = self.filters  # type: ignore[method-assign]

    def filters(self) -> list[str]:
        """What is balanced: mostly all of it, or some of it, into other profiles."""
        one = self.choice.choice
        if self.choice.random() < 0.3:
            return self._balanced()
        profiles = _PROFILES[min(len(self.history.members), len(_PROFILES)) - 1]
        data = f"-dconvert={one(profiles)}{one(['', '', ',soft', ',limit=1'])}"
        metadata = f"-mconvert={one(profiles)}{one(['', '', ',soft', ',limit=1'])}"
        return ["-f", *one([[data, metadata], [data, metadata], [data], [metadata]])]

    def grow(self) -> None:
        """Add a device."""
        history = self.history
        new = history.new_file((256 + self.choice.randrange(5) * 32) * _MB)
        loop = wide.attach(new)
        try:
            run("btrfs", "device", "add", "-f", loop, str(history.top))
        except OSError:
            wide.detach(loop)
            raise
        history.others.append((new, loop))

    def shed(self) -> None:
        """Remove a device."""
        history = self.history
        file, loop = self.choice.choice(history.members)
        run("btrfs", "device", "remove", loop, str(history.top))
        self._keep([member for member in history.members if member[1] != loop])
        wide.detach(loop)
        file.unlink()

    def replace(self) -> None:
        """Put another device into the place of one."""
        history = self.history
        file, loop = self.choice.choice(history.members)
        new = history.new_file(file.stat().st_size + self.choice.choice([0, 40]) * _MB)
        other = wide.attach(new)
        try:
            run("btrfs", "replace", "start", "-B", "-f", loop, other, str(history.top))
        except OSError:
            wide.detach(other)
            raise
        self._keep([(new, other) if one == (file, loop) else one for one in history.members])
        wide.detach(loop)
        file.unlink()

    def resize(self) -> None:
        """Make a device smaller, or as large as it can be."""
        change = self.choice.choice(["-60M", "-20M", "-4M", "max"])
        devid = self.choice.randint(1, len(self.history.members))
        self.history.btrfs("filesystem", "resize", f"{devid}:{change}")

    def lose(self) -> None:
        """Lose a device; where the others are enough, go on without it, or remove it."""
        history = self.history
        history.do(history.btrfs, "balance", "cancel")
        history.unmount()
        before = history.members
        lost = self.choice.choice(before)
        self._keep([member for member in before if member != lost])
        if len(before) == 1 or not history.do(history.mount, _ALL):
            self._keep(before)
            history.mount(_ALL)
            return
        history.log.append(f"lost {lost[0].name}")
        lost[0].unlink()
        for _ in range(5):
            history.do(self.choice.choice(history.files.kinds))
        if self.choice.random() < 0.5:
            history.do(history.btrfs, "device", "remove", "missing")

    def _keep(self, members: list[tuple[Path, str]]) -> None:
        history = self.history
        (history.image, history.loop), *history.others = members

    def live(self) -> None:
        """Do all that; the devices are in a folder in the end."""
        history = self.history
        if history.do(history.mount, history.options()) or history.do(history.mount, _ALL):
            history.files.look_again()
            history.do(history.btrfs, "balance", "cancel")
            for _ in range(self.choice.choice([1, 2, 3, 3])):
                history.do(self.grow)
            history.do(history.balance)
            self._go_on()
            if history.top.is_mount():
                history.unmount()
        folder = history.folder / "devices"
        folder.mkdir()
        for file, _ in history.members:
            file.rename(folder / file.name)
        history.images.append(("end", str(folder)))

    def _go_on(self) -> None:
        """Let things happen, up to a crash."""
        history, files = self.history, self.history.files
        events = [history.balance] * 3 + [history.interrupted] * 3 + [
            self.grow, self.shed, self.replace, self.replace, self.resize, self.resize, self.lose,
            history.quota, history.logged, history.orphans, history.uncleaned, files.defragment,
        ]  # fmt: skip
        for _ in range(self.choice.choice([2, 3, 4])):
            for _ in range(12):
                history.do(self.choice.choice(files.kinds))
            before = len(history.images)
            history.do(self.choice.choice(events))
            if not history.top.is_mount():
                return
            if len(history.images) > before and self.choice.random() < 0.4:
                history.log.append("crash")
                history.crash()
                return
