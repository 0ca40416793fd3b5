# SPDX-License-Identifier: GPL-2.0-only
"""The order in which jobs side by side make files and write to them."""

import corpus
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import btrfs_model as bm
from btrfs_model.experiments.workloads.side_by_side import side_by_side

NAME_AT = 30 + len("file_")


def jobs_of(
    shares: list[int], seed: int = 0
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Numbers and times as `side_by_side` returns them, and the job of each file."""
    numbers, due = side_by_side(shares, np.random.default_rng(seed))
    return numbers, due, np.searchsorted(np.cumsum(shares), numbers, side="right")


def spread(jobs: npt.NDArray[np.int64], count: int) -> float:
    """How many files the first job is ahead of the last one, on average over the whole run."""
    done = np.array([np.cumsum(jobs == job) for job in range(count)])
    return float(np.mean(done.max(axis=0) - done.min(axis=0)))


@given(shares=st.lists(st.integers(0, 400), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_each_job_makes_its_files_in_order(shares: list[int], seed: int) -> None:
    numbers, due, jobs = jobs_of(shares, seed)
    assert sorted(numbers.tolist()) == list(range(sum(shares)))
    for job in range(len(shares)):
        assert (np.diff(numbers[jobs == job]) == 1).all()
    at = np.arange(len(numbers))
    assert ((at <= due) & (due <= len(numbers))).all()
    # a job writes to a file before it makes the next
    for job in range(len(shares)):
        assert (due[jobs == job][:-1] <= at[jobs == job][1:]).all()


@pytest.mark.parametrize("shares", [[500], [500, 500], [800, 30]])
def test_with_a_cpu_each_nothing_is_late(shares: list[int]) -> None:
    numbers, due, jobs = jobs_of(shares)
    assert (due == np.arange(len(numbers))).all()
    assert np.abs(np.diff(jobs[: 2 * shares[-1]])).all() == (len(shares) == 2)


@pytest.mark.claim(
    "Of jobs that write side by side, data are late as often as in recorded traces.",
    judge="recorded",
)
def test_data_are_late_as_often_as_in_traces() -> None:
    _, due, _ = jobs_of([25_000] * 4)
    late = due - np.arange(len(due))
    assert 1 / 165 < np.mean(late > 3) < 1 / 75
    # in a trace of 100,000 files half of them came after 65 others or more, a twentieth after 506
    assert 40 < np.median(late[late > 3]) < 250
    assert 300 < np.percentile(late[late > 3], 95) < 900


@pytest.mark.parametrize("files", [5000, 20_000, 100_000])
def test_jobs_drift_apart_as_a_kernels_do(files: int) -> None:
    """No job keeps pace: by the inode numbers of files that four jobs made side by side."""
    name = f"reada/r{files // 1000}k"
    if not corpus.has(name, "image.zst"):
        pytest.skip(f"{name} is not at hand")
    with bm.open(corpus.image(name)) as fs:
        columns = fs.subvolume("snap1").tree.scan((256, 96, 0), (256, 96, 2**64 - 1))
        view, places = fs.image.view, zip(columns["position"], columns["size"], strict=True)
        made = sorted(
            (
                int.from_bytes(view[at : at + 8], "little"),
                int(bytes(view[at + NAME_AT : at + size])),
            )
            for at, size in places
        )
    kernels = (np.array([number for _, number in made]) - 1) // (files // 4)
    _, _, models = jobs_of([files // 4] * 4)
    # one run differs from another by as much
    assert 1 / 4 < spread(models, 4) / spread(kernels, 4) < 4
