# SPDX-License-Identifier: GPL-2.0-only
"""Fixtures and options for all tests."""

from pathlib import Path

import corpus
import pytest
from hypothesis import HealthCheck, settings

# Times vary with the machine: a slow example is no failure. `make test-long` looks further.
settings.register_profile(
    "default",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("long", parent=settings.get_profile("default"), max_examples=2000)
settings.load_profile("long" if corpus.LONG else "default")


def pytest_report_header() -> str:
    """Say by which corpus this run judges."""
    place = f"oracle {corpus.ORACLE}" if corpus.have_oracle else "data/kernel alone"
    return f"corpus: {place}, {len(corpus.cases())} cases, {len(corpus.images())} images"


@pytest.fixture(scope="session")
def small_image() -> Path:
    """A restored image of a few hundred items, for tests that need any one."""
    return corpus.image("send/random/seed-003")
