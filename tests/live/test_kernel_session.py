# SPDX-License-Identifier: GPL-2.0-only
"""Real kernels that are asked: one that does not answer, and what is left behind."""

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import judges
import pytest
from judges import ask
from killed import left_behind

import btrfs_model as bm
from btrfs_model.base.errors import KernelHungError
from btrfs_model.kernels.native import Native
from btrfs_model.kernels.session import Kernel
from btrfs_model.kernels.uml import Uml

_MAGIC = 65536 + 64


def fresh(kernel: Kernel) -> Path:
    image = kernel.new_file()
    with bm.create(128 << 20) as fs:
        fs.create("a")
        fs.save(image)
    return image


def processes_of(kernel: Kernel) -> list[int]:
    """Processes whose command lines name the folder of a session."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
        except OSError:  # it ended
            continue
        if os.fsencode(kernel.folder) in line and process.name != str(os.getpid()):
            found.append(int(process.name))
    return found


def freeze(kernel: Kernel) -> None:
    """Make a kernel that cannot answer: a time limit alone would be a race, however short."""
    for process in processes_of(kernel):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGSTOP)
    kernel.limit = 0.1


@pytest.mark.claim("A kernel that hangs in a mount is a failed test and no more.", judge="unit")
@judges.MARKS["uml"]
def test_guest_that_does_not_answer_is_killed_and_started_again() -> None:
    with Uml(judges.UML) as guest:
        image, limit = fresh(guest), guest.limit
        assert ask(guest, image, subvolumes=[""]).listing
        with image.open("r+b") as file:
            file.seek(_MAGIC)
            file.write(b"not btrfs")
        answer = ask(guest, image)
        assert "wrong fs type" in answer.failed
        assert answer.listing is None
        assert processes_of(guest)
        freeze(guest)
        with pytest.raises(KernelHungError, match=rf"kernel {guest.release} did not answer in 0"):
            ask(guest, image)
        assert not processes_of(guest)
        guest.limit = limit
        answer = ask(guest, fresh(guest), subvolumes=[""])
        assert answer.listing is not None
        assert list(answer.listing[""]) == ["", "a"]
    assert not processes_of(guest)
    assert not guest.folder.exists()


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=mark) for name, mark in judges.MARKS.items()]
)
def test_nothing_is_left_of_who_was_killed(name: str, busy: bool) -> None:
    where = Path(str(judges.__file__)).parents[1]
    left = left_behind("from judges import STARTED", f"STARTED[{name!r}]()", where, busy=busy)
    assert not left


@judges.MARKS["machine"]
def test_machine_that_does_not_answer_is_not_asked_again() -> None:
    with Native() as machine:
        image = fresh(machine)
        assert ask(machine, image, subvolumes=[""]).listing
        assert processes_of(machine)
        freeze(machine)
        with pytest.raises(KernelHungError, match="did not answer"):
            ask(machine, image)
        with pytest.raises(KernelHungError, match="hung before"):
            ask(machine, image)
    assert not processes_of(machine)
    assert str(machine.folder) not in Path("/proc/self/mountinfo").read_text()


_AS_NOBODY = """if True:
    import shutil, sys
    from pathlib import Path
    from btrfs_model.kernels import timings
    from btrfs_model.kernels.inside import used
    from btrfs_model.kernels.uml import Uml
    with Uml(sys.argv[1]) as guest:
        image = guest.new_file()
        shutil.copy("image", image)
        job = dict(image=str(image), options="rw", subvolumes=[""], write={"a": "b"},
                   snapshots=None, send_data=True, scrub=True, streams="")
        answer = guest.call(used.answer_to, job, guest.top)
        print(answer.get("failed"), list(answer["listing"]), answer["scrub"])
        print("entries", timings.find(guest, image, runs=1).amount)
"""


@judges.MARKS["uml"]
def test_guest_runs_on_one_processor() -> None:
    before = os.sched_getaffinity(0)
    with Uml(judges.UML) as guest:
        image = fresh(guest)
        assert ask(guest, image, subvolumes=[""]).listing
        on = []
        for process in processes_of(guest):
            with suppress(ProcessLookupError):  # a program of the guest may end just now
                on.append(os.sched_getaffinity(process))
    assert len(on) > 1  # the kernel, its threads' processes, the agent
    assert len(on[0]) == 1
    assert on == on[:1] * len(on)
    assert os.sched_getaffinity(0) == before


NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@judges.MARKS["uml"]
@pytest.mark.skipif(os.geteuid() != 0, reason="tests of guests are without root already")
def test_guest_needs_no_root() -> None:
    with TemporaryDirectory() as folder:
        place = Path(folder)
        place.chmod(0o777)
        if subprocess.run([*NOBODY, "test", "-w", folder]).returncode:
            pytest.skip(f"{folder} is for root alone")
        package = Path(str(bm.__file__)).parent
        shutil.copytree(package, place / package.name, ignore=shutil.ignore_patterns("*.so"))
        with bm.create(128 << 20) as fs:
            fs.save(place / "image")
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        ran = subprocess.run(
            [*NOBODY, "env", f"TMPDIR={place}", "/usr/bin/python3", "-B", "-c", _AS_NOBODY,
             str(judges.UML)],
            cwd=place, capture_output=True, text=True,
        )  # fmt: skip
    assert "no errors found" in ran.stdout, ran
    assert "entries 1" in ran.stdout, ran
