# SPDX-License-Identifier: GPL-2.0-only
"""Jobs that make files side by side: in which order the files come, and when data comes to them.

More jobs than CPUs take turns. A job gives its CPU up where a system call returns, and the call in
which nearly all of the time goes by is ``open(2)``, which makes the file. So the file that is in
hand gets its data only when its job has a CPU again, behind files that others made meanwhile. And
no job keeps pace with the others: their files lie side by side, but not those of the same place in
each job. Where a few files are written to again, they are in a leaf of their own each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CPUS = 2
"""Of the machines on which the images of the corpus were made, and their runs repeated."""
_TURN = 110
"""Files of a turn on average; it ends by chance. Measured, not fitted to trees: in ten traces of
Linux 6.18 on two CPUs (5000 to 100,000 files) one file in 75 to 165, in the mean one in 110, got
its data only after more than three others had been made."""


def side_by_side(
    shares: Sequence[int], chance: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Let jobs make files, and write to each of them.

    Parameters
    ----------
    shares : sequence of int
        How many files each job makes: the numbers behind those of the jobs before it.
    chance : numpy.random.Generator
        Decides how long turns are, and whose turn is next.

    Returns
    -------
    numbers : numpy.ndarray
        The number of each file, in the order in which the files are made.
    due : numpy.ndarray
        How many files have been made when this file gets its data.
    """
    return _Jobs(shares, chance).run()


class _Jobs:
    """Jobs, those that have a CPU and those that wait for one."""

    def __init__(self, shares: Sequence[int], chance: np.random.Generator) -> None:
        self.chance = chance
        ends = np.cumsum(shares)
        self.end = ends.tolist()
        self.next = (ends - shares).tolist()
        self.turn = [0] * len(shares)
        self.running: list[int] = []
        self.waiting = [job for job, share in enumerate(shares) if share]
        self.in_hand: dict[int, int] = {}
        self.numbers = np.zeros(int(ends[-1]), np.int64)
        self.due = np.arange(len(self.numbers), dtype=np.float64)
        self.made = 0

    def run(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Go from one end of a turn to the next."""
        while self.made < len(self.numbers):
            while self.waiting and len(self.running) < _CPUS:
                self.running.append(self._start())
            self._make(min(min(self.turn[job], self._left(job)) for job in self.running))
            self._end_turns()
        return self.numbers, self.due

    def _left(self, job: int) -> int:
        return int(self.end[job] - self.next[job])

    def _start(self) -> int:
        """Give a CPU to one that waits, which writes to the file that it had in hand."""
        job = self.waiting.pop(int(self.chance.integers(len(self.waiting))))
        self.turn[job] = self._length()
        if job in self.in_hand:
            self.due[self.in_hand.pop(job)] = self.made
        return job

    def _length(self) -> int:
        return int(self.chance.geometric(1 / _TURN))

    def _make(self, files: int) -> None:
        """Let each job that has a CPU make so many files: by turns, as one waits for the other."""
        first = np.array([self.next[job] for job in self.running])
        numbers = (first + np.arange(files)[:, np.newaxis]).ravel()
        self.numbers[self.made : self.made + len(numbers)] = numbers
        self.made += len(numbers)
        for job in self.running:
            self.next[job] += files
            self.turn[job] -= files

    def _end_turns(self) -> None:
        """Take the CPU from jobs that are done, or whose turn is over while others wait."""
        last = {job: self.made - len(self.running) + at for at, job in enumerate(self.running)}
        for job, number in last.items():
            if not self._left(job):
                self.running.remove(job)
            elif not self.turn[job] and self.waiting:
                self.running[self.running.index(job)] = self._start()
                self.in_hand[job] = number
                self.waiting.append(job)
            elif not self.turn[job]:
                self.turn[job] = self._length()
