# SPDX-License-Identifier: GPL-2.0-only
"""The benchmark that needs a kernel runs to its end on a small tree, and leaves nothing behind."""

import importlib
import os
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from btrfs_model.kernels import native

needs_root = pytest.mark.skipif(bool(native.why_not()), reason=native.why_not())
needs_progs = pytest.mark.skipif(shutil.which("btrfs") is None, reason="needs btrfs-progs")


@pytest.fixture
def bench_real(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    return importlib.import_module("bench.bench_real")


@needs_progs
@pytest.mark.parametrize("root", [pytest.param(True, marks=needs_root), False])
def test_real_files(
    bench_real: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: bool
) -> None:
    files = tmp_path / "files" / "directory"
    files.mkdir(parents=True)
    for number in range(150):
        (files / f"file_{number}").write_bytes(bytes([number]) * 100 * number)
    (files / "link").symlink_to("file_1")
    monkeypatch.setattr(bench_real, "ROUNDS", 1)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    if not root:
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    rows = list(bench_real.measure(tmp_path / "files", 100_000_000))
    assert len(rows) == (18 if root else 8)
    assert all(row["value"] > 0 for row in rows)
    assert [path.name for path in tmp_path.iterdir()] == ["files"]
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
