# SPDX-License-Identifier: GPL-2.0-only
"""Tables on a terminal of 80 columns."""

import re
import string

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from btrfs_model.cli.rows import show

WORDS = st.text(string.ascii_letters + "-/", min_size=1, max_size=36)
CELLS = st.one_of(
    st.integers(0, 2**64).map(str),
    st.lists(WORDS, min_size=1, max_size=6).map(" ".join),
)


@pytest.mark.claim("Tables on a terminal of 80 columns break no number and no word in two.")
@given(st.integers(1, 9).flatmap(
    lambda wide: st.lists(st.lists(CELLS, min_size=wide, max_size=wide), min_size=1, max_size=4)
))  # fmt: skip
@example([
    ["0", "0", "0", "0", "A AAA AAAAA AAAAA AAAAAAA", "AAA AAAA AAAAAAAAA", "0", "0", "0"],
    ["0", "A AAAAAAAAAA AAAAAAAAAAA", "0", "1000", "0", "0", "0", "0", "0"],
    ["A A A AAAAA AAAAAAAAAAAA", "0", "A A A AAA AAA AAAAA", "0", "0", "0",
     "A AAAAA AAAAAAAAAAAAAAAAA A", "0", "0"],
])  # fmt: skip
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_nothing_is_broken_in_two(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rows: list[list[str]]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = [[str(number), *row] for number, row in enumerate(rows)]
    show([f"c{number}" for number in range(len(rows[0]))], rows, None, err=False)
    printed = set(capsys.readouterr().out.split())
    for row in rows:
        for cell in row[1:]:
            assert set(cell.split()) <= printed


def test_a_uuid_is_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    uuid = "e8d03f8e-31eb-4245-8d05-6bcae68833b1"
    row = ["1", uuid, "/dev/disk/by-id/some-disk", "268435456", "125829120", "142606336"]
    show(["devid", "uuid", "path", "size", "allocated", "unallocated"], [row], None, err=False)
    printed = capsys.readouterr().out
    assert set(row) <= set(printed.split())
    assert max(map(len, re.split("\n", printed))) <= 80
