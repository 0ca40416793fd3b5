# SPDX-License-Identifier: GPL-2.0-only
"""Arguments of a wrong type are refused in one line that names them, before anything is done."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from operator import index
from os import PathLike
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from btrfs_model.base.nearest import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")

_PACKAGE: Final = str(Path(__file__).parents[1])
_CONTAINERS: Final = {"Iterable": Iterable, "Sequence": Collection, "Mapping": Mapping}
_WORDS: Final = {
    "Callable": "function",
    "os.PathLike": "path",
    "BinaryIO": "file",
    "Source": "path, bytes or file",
    "Paths": "path or sequence of paths",
}


def _is_buffer(value: Any) -> bool:
    with suppress(TypeError):
        memoryview(value).release()
        return True
    return False


def _is(value: Any, word: str) -> bool:
    """Whether a value is what one word of an annotation says; numbers of numpy are numbers."""
    container, _, items = word.rstrip("]").partition("[")
    if container == "Callable":
        return callable(value)
    if container in _CONTAINERS:
        if not isinstance(value, _CONTAINERS[container]) or isinstance(value, str | bytes):
            return False
        if isinstance(value, Mapping):
            if container != "Mapping":
                return False
            key, item = items.split(", ")
            return all(_is(one, key) and _is(it, item) for one, it in value.items())
        # an iterator can be gone through only once
        again = isinstance(value, list | tuple | set | frozenset)
        return not again or all(_is_any(one, items.split(" | ")) for one in islice(value, 100))
    match word:
        case "object":
            return True
        case "None":
            return value is None
        case "bool" if type(value).__name__ == "bool_":  # of numpy 1
            return True
        case "bool" | "int" if type(value).__name__ != "bool":
            return hasattr(value, "__index__") and not getattr(value, "shape", ())
        case "float":
            return hasattr(value, "__float__")
        case "os.PathLike[str]":
            return isinstance(value, PathLike)
        case "BinaryIO":
            return hasattr(value, "write")
        case "Paths":
            several = value if isinstance(value, list | tuple) else [value]
            return all(isinstance(one, str | PathLike) for one in several)
        case "Source":
            return isinstance(value, str | PathLike) or hasattr(value, "read") or _is_buffer(value)
    return any(word == kind.__name__ for kind in type(value).__mro__)


def _plain(value: Any) -> Any:
    """Return an int for an integer of numpy, all else as it is."""
    return index(value) if hasattr(type(value), "dtype") and _is(value, "int") else value


def _is_any(value: object, words: Iterable[str]) -> bool:
    return any(_is(value, word) for word in words)


def _wanted(words: list[str]) -> str:
    def in_words(match: re.Match[str]) -> str:
        of = match[2].replace(" | ", " or ").replace(", ", " to ")
        return f"{match[1].lower()} of {of}"

    known = [_WORDS.get(word.partition("[")[0], word) for word in words]
    *most, last = [re.sub(r"(\w+)\[(.*)\]", in_words, word) for word in known]
    text = f"{', '.join(most)} or {last}" if most else last
    return f"{'an' if text[0] in 'aeiouAI' else 'a'} {text}"


@functools.cache
def _annotated(function: Callable[..., object]) -> tuple[inspect.Signature, dict[str, list[str]]]:
    """Return the signature, and the words of the annotation of each parameter."""
    signature = inspect.signature(function)
    words = {
        name: re.split(r" \| (?![^\[]*\])", parameter.annotation)
        for name, parameter in signature.parameters.items()
        if parameter.annotation not in (parameter.empty, "Any")
    }
    return signature, words


def _tells(kind: type) -> bool:
    """Whether an argument is right whatever its value is, where one of its type was."""
    return issubclass(kind, str | bytes) or not (
        issubclass(kind, Collection) or hasattr(kind, "dtype")
    )


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Hold the arguments of a public function to its annotations; of a list the first hundred.

    Raises TypeError: when a call has an argument of another type, too many of them or too few.
    """
    right = set()

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        kinds = (*map(type, args), *kwargs, *map(type, kwargs.values()))
        if kinds in right:
            return function(*args, **kwargs)
        signature, annotated = _annotated(function)
        name = function.__qualname__
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            unknown = next((key for key in kwargs if key not in signature.parameters), "")
            nearest = did_you_mean(unknown, annotated)
            raise TypeError(f"{name}(): {error}{nearest}") from None
        for parameter, value in bound.arguments.items():
            words = annotated.get(parameter, ["object"])
            several = signature.parameters[parameter].kind is inspect.Parameter.VAR_POSITIONAL
            for one in value if several else (value,):
                if not _is_any(one, words):
                    held = isinstance(one, Collection) and not isinstance(one, str | bytes)
                    what = f"{one!r:.60}" if held else type(one).__name__
                    raise TypeError(f"{name}(): {parameter} is {_wanted(words)}, not {what}")
            if several:
                bound.arguments[parameter] = tuple(map(_plain, value))
            else:
                bound.arguments[parameter] = _plain(value)
        if all(map(_tells, map(type, (*args, *kwargs.values())))):
            right.add(kinds)
        return function(*bound.args, **bound.kwargs)

    return call


def warn_renamed(old: str, new: str) -> None:
    """Warn who called the package of a spelling that goes with the next release.

    `new`: the one that stays.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=level)


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function take old names of arguments too, for one release, with a warning.

    `**names`: the new name by the old one.
    Raises TypeError: when a call has both.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for old, new in names.items():
                if old in kwargs:
                    if new in kwargs:
                        raise TypeError(f"{function.__qualname__}(): {old} is now {new}")
                    warn_renamed(f"{function.__qualname__}({old}=)", f"{new}=")
                    kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate
