# SPDX-License-Identifier: GPL-2.0-only
"""User-Mode Linux built from the tree of a kernel, which is left as it is.

A copy of the tree is compiled with ``build.config``. A kernel is a folder with the program
``linux``. Where its btrfs counts what it runs, ``gcov`` beside it has what the compiler knows of
each file of ``fs/btrfs`` (``*.gcno``).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from btrfs_model.base.errors import KernelFailedError, KernelMissingError
from btrfs_model.kernels.change import Change

Step = Callable[[str], None]

_CONFIG = Path(__file__).parent / "build.config"
_NEEDED = ("make", "gcc", "flex", "bison", "bc")
# What a build leaves in a tree; another architecture's headers would be taken for this one's.
_MADE = ("*.o", "*.a", "*.cmd", "*.gcno", "*.mod", ".git", "generated")
# It is called before the kernel can print: by the C library, for constructors.
_SAYS = re.compile(r'^(\s*)pr_info\("version magic.*$', re.MULTILINE)
_COUNTING = "GCOV_PROFILE := y\n"
_TOLD = 200
"""Files that are compiled between two words of it."""
_LAST = 400
_ERRORS = 3
_BUILDING = "building-"
# Runs a command as the first of its group, which is killed when who waits closes stdin or dies.
_GUARDED = """\
exec 3<&0
(cat <&3; kill -KILL 0) >/dev/null 2>&1 &
exec "$@" </dev/null 3<&-
"""


def build(tree: Path, output: Path, step: Step) -> None:
    """Build a kernel that counts.

    Parameters
    ----------
    tree : Path
        Of a kernel's source.
    output : Path
        A folder that is made.
    step : callable
        Told what is done.

    Raises
    ------
    KernelMissingError
        With the package that is missing, or when this is no tree of a kernel.
    KernelFailedError
        When it cannot be built, with the compiler's last errors and where all that it said is.
    """
    _check(tree)
    output.mkdir()
    try:
        with _place(output) as place:
            copy = _copied(tree, place, None, step)
            log = output.with_name(f"{output.name}.log")
            _make(copy, output, log, tree.name, step, counting=True)
    except BaseException:
        shutil.rmtree(output, ignore_errors=True)
        raise


def build_both(tree: Path, change: Change, shelf: Path, step: Step) -> tuple[Path, Path]:
    """Build the kernels before and after a change, or take them from a shelf.

    Of a plain tree that has the change already, it is taken back first.

    Returns
    -------
    tuple of Path
        For each a folder with the kernels ``timed`` and ``counting``.

    Raises
    ------
    KernelMissingError, KernelFailedError
        As by :func:`build`; also when the change does not apply.
    """
    _check(tree, "git")
    shelf.mkdir(parents=True, exist_ok=True)
    _clear(shelf)
    name = _identity(tree, change)
    found = tuple(shelf / f"{name}-{side}" for side in ("before", "after"))
    if not all(one.exists() for one in found):
        with _place(shelf) as place:
            copy = _copied(tree, place, change, step)
            for one in found:
                side = one.name.rpartition("-")[2]
                if side == "after":
                    _apply(copy, change, "--whitespace=nowarn")
                made = place / side
                made.mkdir()
                for kind in ("timed", "counting"):
                    (made / kind).mkdir()
                    _make(copy, made / kind, one.with_name(f"{one.name}.log"),
                          f"{side}, {kind}", step, counting=kind == "counting")  # fmt: skip
                if not one.exists():
                    made.rename(one)
    return found[0], found[1]


def shelf() -> Path:
    """Return the folder where kernels are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "btrfs-model" / "kernels"


def _check(tree: Path, *besides: str) -> None:
    for program in (*_NEEDED, *besides):
        if shutil.which(program) is None:
            raise KernelMissingError(f"{program} is not here (Debian: package {program})")
    is_bare = (tree / "HEAD").is_file() and (tree / "objects").is_dir()
    if not (tree / "fs/btrfs/Makefile").is_file() and not (is_bare and "git" in besides):
        raise KernelMissingError(f"{tree}: no tree of a kernel: it has no fs/btrfs/Makefile")


def _identity(tree: Path, change: Change) -> str:
    """Name what is built by all that it depends on."""
    compiler = subprocess.run(["gcc", "--version"], capture_output=True, check=True).stdout
    parts = [change.parent.encode(), change.diff, _CONFIG.read_bytes(), Path(__file__).read_bytes(),
             compiler]  # fmt: skip
    if not change.parent:
        ignored = shutil.ignore_patterns(*_MADE)
        for folder, below, names in os.walk(tree):
            left_out = ignored(folder, [*below, *names])
            below[:] = sorted(set(below) - left_out)
            for name in sorted(set(names) - left_out):
                path = os.path.join(folder, name)  # noqa: PTH118
                known = os.lstat(path)
                parts.append(f"{path} {known.st_size} {known.st_mtime_ns}".encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


@contextmanager
def _place(folder: Path) -> Iterator[Path]:
    """Make a folder to build in, which goes in the end; it is locked as long as it is used."""
    with (
        TemporaryDirectory(prefix=_BUILDING, dir=folder) as name,
        (Path(name) / "lock").open("w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(name)


def _clear(folder: Path) -> None:
    """Remove what builders left that were killed."""
    for place in folder.glob(f"{_BUILDING}*"):
        with suppress(OSError), (place / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(place, ignore_errors=True)


def _copied(tree: Path, place: Path, change: Change | None, step: Step) -> Path:
    """Copy a tree, as it is before a change."""
    step(f"copying {tree}")
    copy = place / "tree"
    if change is not None and change.parent:
        copy.mkdir()
        ran = subprocess.run(["git", "-C", str(tree), "archive", "--output", f"{place}/tree.tar",
                              change.parent], capture_output=True, text=True)  # fmt: skip
        if ran.returncode:
            raise KernelFailedError(f"{tree}: git archive: {' '.join(ran.stderr.split())}")
        shutil.unpack_archive(place / "tree.tar", copy, "tar")
        (place / "tree.tar").unlink()
    else:
        shutil.copytree(tree, copy, symlinks=True, ignore=shutil.ignore_patterns(*_MADE))
        _replace_links(copy, tree)
        if change is not None:
            _take_back(copy, tree, change)
    base = copy / "kernel/gcov/gcc_base.c"
    base.write_text(_SAYS.sub(r"\1(void)0;", base.read_text()))
    shutil.copy(_CONFIG, copy / "build.config")
    return copy


def _replace_links(copy: Path, tree: Path) -> None:
    """Put what they lead to in the place of links that lead out of a copy, as in a farm of them.

    What is written to would else be written in the tree itself. A link from place to place in a
    copy, as kernels have them, stays.
    """
    for folder, below, names in os.walk(copy):  # also into what takes the place of a link
        for link in (Path(folder, name) for name in (*below, *names)):
            if not link.is_symlink():
                continue
            place = os.path.normpath(link.parent.relative_to(copy) / os.readlink(link))  # noqa: PTH115
            if not place.startswith(("/", "..")):
                continue
            target = tree / link.relative_to(copy)
            link.unlink()
            if target.is_dir():
                shutil.copytree(target, link, symlinks=True, ignore=shutil.ignore_patterns(*_MADE))
            elif target.is_file():
                shutil.copy2(target, link)


def _take_back(copy: Path, tree: Path, change: Change) -> None:
    """See to it that a copy is as it was before a change."""
    try:
        _apply(copy, change, "--check")
    except KernelFailedError as error:
        with suppress(KernelFailedError):
            _apply(copy, change, "--reverse")
            return
        raise KernelFailedError(
            f"{tree}: the patch neither applies nor is there already: {error}"
        ) from None


def _apply(copy: Path, change: Change, *options: str) -> None:
    ran = subprocess.run(["git", "apply", *options], cwd=copy, input=change.diff,
                         env={**os.environ, "GIT_CEILING_DIRECTORIES": str(copy.parent)},
                         capture_output=True)  # fmt: skip
    if ran.returncode:
        raise KernelFailedError(" ".join(ran.stderr.decode(errors="replace").split()))


def _make(copy: Path, output: Path, log: Path, what: str, step: Step, *, counting: bool) -> None:
    """Compile a tree into a folder; what was compiled before stays where it can."""
    makefile = copy / "fs/btrfs/Makefile"
    plain = makefile.read_text()
    makefile.write_text(plain + _COUNTING * counting)
    jobs = f"-j{os.cpu_count() or 1}"
    for goals in (("KCONFIG_ALLCONFIG=build.config", "allnoconfig"), (jobs, "linux")):
        _run(["make", "-C", str(copy), "ARCH=um", *goals], log, what, step)
    shutil.copy(copy / "linux", output / "linux")
    if counting:
        (output / "gcov").mkdir()
        for notes in (copy / "fs/btrfs").glob("*.gcno"):
            shutil.copy(notes, output / "gcov")
    makefile.write_text(plain)


def _run(command: list[str], log: Path, what: str, step: Step) -> None:
    """Run a part of a build, of which nothing goes on when this ends."""
    step(f"{what}: make {command[-1]}")
    last, compiled = deque[str](maxlen=_LAST), 0
    ran = subprocess.Popen(
        ["sh", "-c", _GUARDED, "sh", *command], text=True, errors="replace", stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    assert ran.stdin is not None
    assert ran.stdout is not None
    try:
        for line in ran.stdout:
            last.append(line)
            if line.lstrip().startswith("CC "):
                compiled += 1
                if not compiled % _TOLD:
                    step(f"{what}: {compiled} files compiled")
        status = ran.wait()
    finally:
        ran.stdin.close()
        ran.wait()
        ran.stdout.close()
    if status:
        log.write_text("".join(last))
        errors = [line.strip() for line in last if "rror" in line][:_ERRORS] or ["failed"]
        error = KernelFailedError(f"{what}: make {command[-1]}: {errors[0]}")
        for line in (*errors[1:], f"see {log.absolute()}"):
            error.add_note(line)
        raise error
