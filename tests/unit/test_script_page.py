# SPDX-License-Identifier: GPL-2.0-only
"""What `btrfs-model script` writes: a page, and tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from browser import CUT_LABELS, CUT_OFF, SCHEMES, WIDTHS, chromium, violations
from click.testing import CliRunner

import btrfs_model as bm
from btrfs_model.cli import cli
from btrfs_model.experiments.report.script import page
from btrfs_model.scripts.answer import tables
from btrfs_model.scripts.find import Found
from btrfs_model.scripts.host import why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

MAIL = """\
Subject: [PATCH] btrfs: <b>faster</b>

Like this:

  $ cat test.sh
  #!/bin/bash

  mkfs.btrfs -f -q /dev/sdi
  mount /dev/sdi /mnt/sdi
  mkdir /mnt/sdi/dir
  for ((i = 1; i <= 3000; i++)); do
      echo -n > /mnt/sdi/dir/file_$i   # a comment that has no room on a telephone
  done
  start=$(date +%s%N)
  xfs_io -c "fsync" /mnt/sdi/dir
  end=$(date +%s%N)
  echo "<i>$(( (end - start) / 1000000 )) ms</i>"
  ls /mnt/sdi/dir | wc -l
  start=$(date +%s%N)
  rm /mnt/sdi/dir/file_7
  end=$(date +%s%N)
  printf 'a\\033[31m red\\n'

  $ ./test.sh
  <i>12 ms</i>
  3001
  never printed

Signed-off-by: A <a@example.org>
"""
SIDES = ["--before", "v5.16", "--after", "v5.16 + log-dir-index-only"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page and the tables of a message, on two kernels."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "the.mail").write_text(MAIL)
    arguments = ["script", str(folder / "the.mail"), *SIDES, "--device", "samsung-850-evo",
                 "--size", "1G", "--html", str(folder / "the.html"), "--out",
                 str(folder / "out")]  # fmt: skip
    ran = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert ran.exit_code == 0
    return folder


def test_the_page_has_it_all(written: Path) -> None:
    text = (written / "the.html").read_text()
    for part in (
        "<h1>the.mail</h1>",
        "<code>v5.16 + log-dir-index-only</code>",
        "device samsung-850-evo; no worker",
        '<li class="timed">xfs_io -c &#34;fsync&#34; /mnt/sdi/dir</li>',
        "Timed, with a bar beside them: lines 10, 15.",
        "&lt;i&gt;12 ms&lt;/i&gt;",
        "Of 3 lines are equal, times apart: 1 on <code>v5.16</code>",
        '<td role="cell" data-label="v5.16">not printed</td>',
        "a\\x1b[31m red",
        '<div class="on-narrow"><svg',
    ):
        assert part in text, part
    for part in ("<i>", "\x1b", "http:", "https:", "<script", "src="):
        assert part not in text.replace("http://www.w3.org", ""), part


def test_the_tables(written: Path) -> None:
    steps = pd.read_parquet(written / "out/steps.parquet")
    regions = pd.read_parquet(written / "out/regions.parquet")
    assert (written / "out/dev-sdi.img").is_file()
    assert steps.columns[:6].tolist() == ["behaviour", "line", "what", "seconds", "bytes", "errno"]
    assert steps.groupby("behaviour", sort=False).what.agg(list).tolist() == [
        ["mkdir", "create 3,000 files", "fsync /mnt/sdi/dir", "unlink"]
    ] * 2  # fmt: skip
    assert (steps.btrfs_log_inode > 0).tolist() == [False, False, True, False] * 2
    assert regions.behaviour.tolist() == [SIDES[1], SIDES[1], SIDES[3], SIDES[3]]
    assert regions.seconds[0] > regions.seconds[2] > 0
    assert regions.depends_on.tolist() == ["device samsung-850-evo; no worker", ""] * 2


def test_a_script_that_does_nothing() -> None:
    """It has a page without times, and tables without rows."""
    result = bm.script("true")
    text = page("nothing", Found("true\n", 1), ["v6.18"], [result], "1")
    assert "<h2>Times</h2>" not in text
    assert "Status 0; it printed nothing." in text
    assert [len(one) for one in tables(["v6.18"], [result]).values()] == [0, 0]


def test_very_many_times() -> None:
    """The chart has the longest, the table all."""
    loop = "for i in {1..99}; do date > /dev/null; mkdir /mnt/x/$i; done; date\n"
    result = bm.script("mkfs.btrfs -q -f /dev/sdb; mount /dev/sdb /mnt/x\n" + loop)
    text = page("many", Found(loop, 1), ["v6.18"], [result], "1")
    table, _, chart = text.partition("<figure")
    assert table.count("mkdir</td>") == 99
    assert chart.partition("</svg>")[0].count(">line 2, mkdir<") == 40


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.mark.claim(
    "The page of a script fits screens of 400 pixels and more, in the light and the dark: nothing "
    "is cut off, and axe finds nothing.",
    "Chromium",
)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_in_a_browser(browser: Any, written: Path, width: int, scheme: str) -> None:
    shown = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    asked: list[str] = []
    shown.on("request", lambda request: asked.append(request.url))
    shown.goto((written / "the.html").as_uri())
    assert len(asked) == 1
    assert violations(shown) == []
    assert shown.evaluate(CUT_OFF) == []
    assert shown.evaluate(CUT_LABELS) == []
    ground = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 31)"}[scheme]
    assert shown.evaluate("getComputedStyle(document.querySelector('svg text')).fill") != ground
    shown.close()
