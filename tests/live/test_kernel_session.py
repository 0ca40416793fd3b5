# SPDX-License-Identifier: GPL-2.0-only
"""Kernels that are asked about images: one that does not answer, and what is left behind."""

import os
import shutil
import signal
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import uml
from kernel_session import KernelHungError, KernelSession
from live import Machine, why_not_live

import btrfs_model as bm

needs_uml = pytest.mark.skipif(bool(uml.why_not_uml()), reason=uml.why_not_uml())
needs_root = pytest.mark.skipif(bool(why_not_live()), reason=why_not_live())


_MAGIC = 65536 + 64


def fresh(session: KernelSession) -> Path:
    image = session.new_image()
    with bm.create(128 << 20) as fs:
        fs.create("a")
        fs.save(image)
    return image


def processes_of(session: KernelSession) -> list[int]:
    """Processes whose command lines name the folder of a session."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_text()
        except OSError:  # it ended
            continue
        if str(session.folder) in line and process.name != str(os.getpid()):
            found.append(int(process.name))
    return found


def freeze(session: KernelSession) -> None:
    """Make a kernel that cannot answer: a time limit alone would be a race, however short."""
    for process in processes_of(session):
        os.kill(process, signal.SIGSTOP)


@pytest.mark.claim("A kernel that hangs in a mount is a failed test and no more.", judge="unit")
@needs_uml
def test_guest_that_does_not_answer_is_killed_and_started_again() -> None:
    with uml.Guest() as guest:
        image = fresh(guest)
        assert guest.ask(image, subvolumes=[""]).listing
        with image.open("r+b") as file:
            file.seek(_MAGIC)
            file.write(b"not btrfs")
        answer = guest.ask(image)
        assert "wrong fs type" in answer.failed
        assert answer.listing is None
        assert processes_of(guest)
        freeze(guest)
        with pytest.raises(KernelHungError, match=rf"kernel {guest.release} did not answer in 0"):
            guest.ask(image, timeout=0.1)
        assert not processes_of(guest)
        answer = guest.ask(fresh(guest), subvolumes=[""])
        assert answer.listing is not None
        assert list(answer.listing[""]) == ["", "a"]
    assert not processes_of(guest)
    assert not guest.folder.exists()


@needs_root
def test_machine_that_does_not_answer_is_not_asked_again() -> None:
    with Machine() as machine:
        image = fresh(machine)
        assert machine.ask(image, subvolumes=[""]).listing
        assert processes_of(machine)
        freeze(machine)
        with pytest.raises(KernelHungError, match="did not answer"):
            machine.ask(image, timeout=0.1)
        with pytest.raises(KernelHungError, match="hung before"):
            machine.ask(image)
    assert not processes_of(machine)
    assert str(machine.folder) not in Path("/proc/self/mountinfo").read_text()


_AS_NOBODY = """if True:
    import shutil, uml
    with uml.Guest() as guest:
        image = guest.new_image()
        shutil.copy("image", image)
        answer = guest.ask(image, subvolumes=[""], write={"a": "b"}, scrub=True)
        print(answer.failed, list(answer.listing), answer.scrub)
"""


NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@needs_uml
@pytest.mark.skipif(os.geteuid() != 0, reason="tests of guests are without root already")
def test_guest_needs_no_root() -> None:
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        if subprocess.run([*NOBODY, "test", "-w", folder]).returncode:
            pytest.skip(f"{folder} is for root alone")
        place = Path(folder)
        for name in ("uml.py", "uml_xstate.c", "kernel_session.py", "kernel_agent.py",
                     "kernel_records.py"):  # fmt: skip
            shutil.copyfile(Path(uml.__file__).parent / name, place / name)
            (place / name).chmod(0o644)
        with bm.create(128 << 20) as fs:
            fs.save(place / "image")
        (place / "image").chmod(0o644)
        ran = subprocess.run(
            [*NOBODY, "env", f"TMPDIR={place}", "/usr/bin/python3", "-B", "-c", _AS_NOBODY],
            cwd=place, capture_output=True, text=True,
        )  # fmt: skip
    assert "no errors found" in ran.stdout, ran
