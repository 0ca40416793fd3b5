# SPDX-License-Identifier: GPL-2.0-only
"""The atlas over sizes: the gain of a commit, where it begins to pay, and where it hurts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from btrfs_model.cli import run as command
from btrfs_model.experiments.atlas.rows import chosen
from btrfs_model.experiments.atlas.runs import run
from btrfs_model.experiments.atlas.sizes import COLUMNS, POINTS, smaller, where


def _ratios(*ratios: float) -> pd.DataFrame:
    names = [f"FILES={10**place}" for place in range(len(ratios))]
    return pd.DataFrame({"size": names, "ratio": ratios})


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ((1.2, 1.5), "pays at each of 2 sizes"),
        ((1.2,), "pays at FILES=1"),
        ((0.9, 1.0, 1.5), "begins to pay between FILES=10 and FILES=100; hurts at FILES=1: 0.9x"),
        ((1.5, 0.9, 1.2), "begins to pay between FILES=10 and FILES=100; hurts at FILES=10: 0.9x"),
        ((1.5, 1.0), "does not pay at the largest size"),
        ((1.0, 0.5), "pays at no size; hurts at FILES=10: 0.5x"),
        ((float("nan"), 1.5), "pays at FILES=10"),
        ((float("nan"),), "not told at any size"),
    ],
)  # fmt: skip
def test_where_a_commit_pays(ratios: tuple[float, ...], said: str) -> None:
    assert where(_ratios(*ratios)) == said


@pytest.mark.claim(
    "The gain of a commit over the size of its script is that of the script at each size."
)
def test_the_gain_over_the_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path)]
    assert command(["atlas", "log-dir-batches", "umount-no-empty-commit", "--scale", "quick",
                    "--sizes", *out]) == 0  # fmt: skip
    assert "where it pays" in capsys.readouterr().out
    found = pd.read_csv(tmp_path / "sizes.csv")
    assert list(found) == list(COLUMNS) and set(found.row) == {"log-dir-batches"}
    assert found.figure.nunique() == 2 and len(found) == 2 * POINTS
    assert found["size"].tolist()[:: POINTS - 1][:2] == ["FILES=1,250", "FILES=20,000"]
    (row,) = chosen(["log-dir-batches"])
    made = run(replace(row, quick={"FILES": 1250}), "quick").values
    for (figure,), one in found[found.share == 0].groupby(["figure"]):
        assert one.before.item() == pytest.approx(made[figure].before)
        assert one.after.item() == pytest.approx(made[figure].after)
    # what makes no difference has no ratio
    untold = found[found.ratio.isna()]
    assert len(untold) == 1 and untold.before.item() == untold.after.item()
    page = (tmp_path / "atlas.html").read_text()
    assert 'id="log-dir-batches-sizes-title"' in page and "log-dir-batches-sizes-narrow" in page
    assert "umount-no-empty-commit-sizes" not in page


def test_a_full_run_has_the_quick_size_first() -> None:
    cell = smaller("send-skip-truncate", 0, True, "")
    assert cell["size"].tolist() == ["scale=0.025"]


@pytest.mark.parametrize("other", [["--history"], ["--predict-only", "p.toml"]])
def test_what_does_not_go_with_sizes(other: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["atlas", "log-dir-batches", "--sizes", *other]) == 2
    assert "does not go with --sizes" in capsys.readouterr().err
