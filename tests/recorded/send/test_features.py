# SPDX-License-Identifier: GPL-2.0-only
"""One tiny filesystem for each checksum, node size, profile and feature: opened, checked, sent."""

import hashlib
from collections.abc import Iterator

import corpus
import pytest

import btrfs_model as bm
from btrfs_model.cli import run as run_cli

ONE_DEVICE = [name for name in corpus.cases("features") if corpus.case(name)["devices"] == 1]


@pytest.fixture(params=["c", "python"])
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    with bm.use_code(request.param):
        yield request.param


@pytest.mark.claim(
    "A filesystem of each checksum, node size, profile and feature is sent as the kernel sends it."
)
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", ONE_DEVICE)
def test_send(name: str) -> None:
    send = corpus.case(name)["sends"][0]
    with bm.open(corpus.image(name)) as fs:
        stream = bm.send(fs, send["snap"], behaviour="v6.18.44").data
    assert stream == corpus.stream(name, send["file"])
    assert hashlib.sha256(stream).hexdigest() == send["native"]["sha256"]


@pytest.mark.parametrize("name", ONE_DEVICE)
def test_check(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["check", "--data", str(corpus.image(name))]) == 0, capsys.readouterr().out


def test_one_of_two_devices(capsys: pytest.CaptureFixture[str]) -> None:
    name = "features/raid1-two-devices"
    image = corpus.image(name)
    with pytest.raises(bm.errors.MissingDeviceError, match="device 2"):
        bm.open(image)
    assert run_cli(["ls", str(image), "snap"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(image) in said
    with bm.open(image, degraded=True) as fs:
        stream = bm.send(fs, "snap", behaviour="v6.18.44").data
    assert stream == corpus.stream(name, corpus.case(name)["sends"][0]["file"])
