# SPDX-License-Identifier: GPL-2.0-only
"""Errors arrive from other processes as they were raised there."""

import copy
import inspect
import multiprocessing
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from typing import Any

import pandas as pd
import pytest

import btrfs_model as bm
from btrfs_model.base.errors import BtrfsModelError, Fault

FORK = multiprocessing.get_context("fork")

# what a parameter is given, by its annotation
GIVEN = {
    "str": "text",
    "int": 7,
    "Any": {"rows": [1, 2]},
    "str | os.PathLike[str]": "an image",
    "str | None": "what it is",
    "Iterable[str]": iter(["one", "two"]),
    "tuple[Hashable, ...]": ("an item", 5),
    "Fault": Fault(-6, tree=5, block=4096, slot=3, found=1, wanted=2),
    "pd.DataFrame": pd.DataFrame({"cell": [1, 2]}),
}


def classes() -> Iterator[type[BtrfsModelError]]:
    """Every error of the package, wherever it is."""
    for module in pkgutil.walk_packages(bm.__path__, "btrfs_model."):
        if module.name.rpartition(".")[2] not in ("__main__", "agent"):
            import_module(module.name)
    found = [BtrfsModelError]
    while found:
        kind = found.pop()
        found += kind.__subclasses__()
        if kind.__module__.startswith("btrfs_model"):
            yield kind


CLASSES = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in classes()}


def an_error(kind: type[BtrfsModelError]) -> BtrfsModelError:
    """Make one, of arguments of the types that it wants."""
    if not inspect.isfunction(kind.__init__):
        error = kind("what went wrong")
    else:
        _, *wanted = inspect.signature(kind.__init__).parameters.values()
        error = kind(*(GIVEN[one.annotation] for one in wanted))
    error.add_note("a note")
    return error


def shown(error: BaseException) -> dict[str, Any]:
    """All that can be asked of an error."""
    names = ("args", "errno", "strerror", "filename", "name", "path", "__notes__")
    return {
        "type": type(error), "text": str(error), "state": repr(vars(error)),
        **{name: repr(getattr(error, name, None)) for name in names},
    }  # fmt: skip


def pickled(error: BtrfsModelError) -> Any:
    return pickle.loads(pickle.dumps(error))


def fail(name: str) -> None:
    raise an_error(CLASSES[name])


def open_image(path: str) -> list[int]:
    return bm.open(path).subvolume_ids


def receive(data: bytes) -> None:
    bm.receive(bm.create("256M"), data)


@pytest.mark.claim("Every error of the package pickles and copies with its text and attributes.")
@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickled])
def test_an_error_pickles_and_copies(
    name: str, again: Callable[[BtrfsModelError], BtrfsModelError]
) -> None:
    error = an_error(CLASSES[name])
    assert shown(again(error)) == shown(error)
    assert shown(again(again(error))) == shown(error)


def test_errors_arrive_from_pools() -> None:
    with FORK.Pool(1) as pool, ProcessPoolExecutor(1, FORK) as executor:
        for name, kind in CLASSES.items():
            expected = shown(an_error(kind))
            expected.pop("state")
            expected.pop("__notes__")
            for result in (pool.apply_async(fail, (name,)).get, executor.submit(fail, name).result):
                with pytest.raises(kind) as caught:
                    result(timeout=600)
                assert shown(caught.value).items() >= expected.items()


def test_real_errors_arrive_from_pools(tmp_path: Any) -> None:
    text = tmp_path / "text"
    text.write_text("no filesystem")
    data = bm.send(bm.open(bm.sample("kernel/send/send-truncate/n500")), "snap").data
    with FORK.Pool(1) as pool:
        for call, given in ((open_image, str(text)), (receive, b"btrfs-stream\0"),
                            (receive, data[:-9]), (open_image, "no/such/file")):  # fmt: skip
            with pytest.raises(Exception) as here:
                call(given)
            with pytest.raises(type(here.value)) as there:
                pool.apply_async(call, (given,)).get(600)
            assert shown(here.value)["text"] == shown(there.value)["text"]
