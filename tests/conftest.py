# SPDX-License-Identifier: GPL-2.0-only
"""Fixtures and options for all tests."""

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import corpus
import judges
import pytest
from browser import chromium
from hypothesis import HealthCheck, settings

from btrfs_model.cli import common
from btrfs_model.kernels.session import Kernel

# Times vary with the machine: a slow example is no failure. A short run has the same examples every
# time; `make test-long` looks at others, and further. Among the examples are constants of all
# modules that a process has loaded so far, which depends on the tests that it ran before: not here.
with suppress(ImportError, AttributeError):  # of no public name: another version may have none
    from hypothesis.internal.conjecture import providers

    providers._get_local_constants = lambda known=providers._local_constants: known
settings.register_profile(
    "default",
    deadline=None,
    max_examples=100 if corpus.MORE else 30,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile(
    "long", parent=settings.get_profile("default"), derandomize=False, max_examples=2000
)
settings.load_profile("long" if corpus.LONG else "default")

# Calls beside the model, which has this umask, are made with it.
os.umask(0o022)
os.environ.pop("SOURCE_DATE_EPOCH", None)  # the clock of the model
# Who has no home keeps what the programs under test remember elsewhere.
try:
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").mkdir(
        parents=True, exist_ok=True
    )
except (OSError, RuntimeError):
    os.environ["XDG_CACHE_HOME"] = f"{tempfile.gettempdir()}/btrfs-model-cache-{os.geteuid()}"


def pytest_report_header() -> str:
    """Say by which corpus this run judges."""
    place = f"oracle {corpus.ORACLE}" if corpus.have_oracle else "data/kernel alone"
    part = "" if corpus.MORE else "; tests marked `more` and Hypothesis look at a part"
    return f"corpus: {place}, {len(corpus.cases())} cases, {len(corpus.images())} images{part}"


PASSED = os.environ.get("BTRFS_MODEL_TESTS_PASSED", "")
"""A file of tests that passed: who finds it does not run them again, who does not, writes it."""
_IS_THERE = bool(PASSED) and Path(PASSED).is_file()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what an earlier run has, and of many cases most where the larger corpus is not."""
    seen: Counter[str] = Counter()
    for item in items:
        if (mark := item.get_closest_marker("one_of")) and not corpus.MORE:
            (number,), name = mark.args, item.nodeid.partition("[")[0]
            if seen[name] % number:
                why = f"one case of {number} without the larger corpus (BTRFS_MODEL_TESTS=long)"
                item.add_marker(pytest.mark.skip(reason=why))
            seen[name] += 1
    if _IS_THERE:
        passed = set(Path(PASSED).read_text().splitlines())
        config.hook.pytest_deselected(items=[one for one in items if one.nodeid in passed])
        items[:] = [one for one in items if one.nodeid not in passed]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what passed, in the process that has the reports of all."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if PASSED and not _IS_THERE and reporter and "PYTEST_XDIST_WORKER" not in os.environ:
        passed = [report.nodeid for report in reporter.stats.get("passed", [])
                  if corpus.MORE or not {"more", "hypothesis"} & {*report.keywords}]  # fmt: skip
        Path(PASSED).write_text("\n".join(sorted(set(passed))) + "\n")


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command writes to standard error does not depend on how long it takes."""
    monkeypatch.setattr(common, "SELDOM", 1e6)


@pytest.fixture(scope="session")
def small_image() -> Path:
    """A restored image of a few hundred items, for tests that need any one."""
    return corpus.image("send/random/seed-003")


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(started, id=name, marks=judges.MARKS[name])
        for name, started in judges.STARTED.items()
    ],
)
def kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """Each kernel that can be asked: the machine's own (as root) and that of a guest."""
    with request.param() as session:
        yield session


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium; while it runs no other loop of events can."""
    with chromium() as started:
        yield started
