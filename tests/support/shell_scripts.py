# SPDX-License-Identifier: GPL-2.0-only
"""Shell scripts in tests/data/scripts: run by bash on a kernel, on loop devices."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[1] / "data/scripts"
NAMES = sorted(path.stem for path in FOLDER.glob("*.sh"))
_DEVICE = re.compile(r"/dev/sd[a-z]\b")
_SIZE = 100 << 30
_NOTE = re.compile(r"NOTE: several default.*?free-space-tree\)\n\n", re.DOTALL)
_TIMES = (
    (re.compile(r"; [\d.]+ sec \(.*\)"), "; T"),
    (re.compile(r"took \d+ "), "took T "),
    (re.compile(r"\w{3} [ \d]\d (?: \d{4}|\d\d:\d\d)"), "DATE"),
)


class Printed(NamedTuple):
    """What a script prints, times apart, and its status."""

    stdout: str
    stderr: str
    status: int


def missing(name: str) -> list[str]:
    """Return the programs that a script needs and this machine has not: ``# needs`` names them."""
    needs = re.search(r"^# needs (.*)$", (FOLDER / f"{name}.sh").read_text(), re.M)
    return [one for one in needs[1].split() if shutil.which(one) is None] if needs else []


def without_times(text: str) -> str:
    """Put a word in the place of what depends on the time, and take mkfs's note of a day away."""
    text = _NOTE.sub("", text)
    for pattern, word in _TIMES:
        text = pattern.sub(word, text)
    return text


def recorded(name: str) -> Printed:
    """Return what a script printed on a kernel."""
    out, err = ((FOLDER / f"{name}.{kind}").read_text() for kind in ("out", "err"))
    status, _, rest = err.partition("\n")
    return Printed(out, rest, int(status))


def write(name: str, printed: Printed) -> None:
    """Keep what a script printed."""
    (FOLDER / f"{name}.out").write_text(printed.stdout)
    (FOLDER / f"{name}.err").write_text(f"{printed.status}\n{printed.stderr}")


def on_kernel(name: str) -> Printed:
    """Run a script by bash as root; its devices, mounts and /tmp are in a folder of its own."""
    text = (FOLDER / f"{name}.sh").read_text()
    with tempfile.TemporaryDirectory(prefix="script-") as folder:
        places = {"/mnt/": f"{folder}/mnt/", "/tmp": f"{folder}/tmp"}
        loops = []
        try:
            for device in sorted(set(_DEVICE.findall(text))):
                image = f"{folder}/{Path(device).name}"
                with Path(image).open("wb") as file:
                    file.truncate(_SIZE)
                loop = subprocess.run(["losetup", "-f", "--show", image], check=True,
                                      stdout=subprocess.PIPE, text=True).stdout.strip()  # fmt: skip
                loops.append(loop)
                places[device] = loop
            known = re.compile("|".join(map(re.escape, places)))
            text = known.sub(lambda found: places[found[0]], text)
            script = Path(folder, "script")
            script.write_text(text)
            for made in ("mnt", "tmp"):
                Path(folder, made).mkdir()
            ran = subprocess.run(
                ["bash", str(script)], cwd=folder, capture_output=True, text=True, timeout=300,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC", "HOME": "/root"},
            )  # fmt: skip
        finally:
            for line in reversed(Path("/proc/mounts").read_text().splitlines()):
                if f" {folder}/" in line:
                    subprocess.run(["umount", line.split()[1]], check=False)
            for loop in loops:
                subprocess.run(["losetup", "-d", loop], check=False)
        printed = []
        for output in (ran.stdout, ran.stderr):
            for here, there in [("script", str(script)), *places.items()]:
                output = output.replace(there, here)
            printed.append(without_times(output))
    return Printed(printed[0], printed[1], ran.returncode)
