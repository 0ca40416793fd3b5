# SPDX-License-Identifier: GPL-2.0-only
"""``native/text``: tree blocks and files as text, by a form."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import numpy as np

from btrfs_model.native.door import ffi, lib, new_fault, raise_fault, raw

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BUFFER: Final = 1 << 20

ITEM: Final = {
    name: (field.offset, ffi.sizeof(field.type))
    for name, field in ffi.typeof("struct bm_text_item").fields
}
"""Byte and width of what C knows of an item, by name."""


def _numbers(name: str) -> dict[str, int]:
    """Return the numbers of an enumeration, without what their names begin with."""
    numbers: Mapping[str, int] = ffi.typeof(f"enum {name}").relements
    return {what.removeprefix("BM_TEXT_").lower(): number for what, number in numbers.items()}


_HOW: Final = _numbers("bm_text_how")
_STARTS: Final = _numbers("bm_text_start")
_WORDS: Final = _numbers("bm_text_word")

Answer = Callable[[int, int, int], str | bytes]
"""What makes a word of up to three numbers."""


class Step(NamedTuple):
    """One step of a form: ``struct bm_text_step``.

    `how`: of ``enum bm_text_how``.
    `text`: what is written before.
    `place`, `width`: of the field, in bytes.
    `in_item`: the field is one of :data:`ITEM`.
    `word`: the function that makes the word of BM_TEXT_WORD.
    `least`, `jump`, `value`, `mask`: see `how`.
    `field`: the structure and the field in it, for those who show more than text.
    """

    how: str
    text: bytes = b""
    place: int = 0
    width: int = 0
    in_item: bool = False
    word: Callable[[int], str] | None = None
    least: int = 0
    jump: int = 0
    value: int = 0
    mask: int = 2**64 - 1
    field: str = ""


class FormWriter:
    """Writes tree blocks, or files, as text.

    `parts`: steps by type of item, and for ``leaf``, ``node``, ``item``, ``pointer``; or ``row``.
    `answers`: of ``enum bm_text_word``, what says the words.
    `plain`: types of items whose keys are numbers, except objects near 0 and -1.
    `options`: more of ``struct bm_text_form``.
    """

    def __init__(
        self,
        parts: Mapping[int | str, Sequence[Step]],
        answers: Mapping[str, Answer],
        plain: Sequence[bool] = (),
        **options: int,
    ) -> None:
        self._answers = {_WORDS[name]: answer for name, answer in answers.items()}
        words: dict[Callable[[int], str], int] = {}
        texts, starts = bytearray(), [0] * _STARTS["starts"]
        steps: list[tuple[int, ...]] = [(0, 0, _HOW["end"])]
        for part, of_part in parts.items():
            starts[part if isinstance(part, int) else _STARTS[part]] = len(steps)
            for step in (*of_part, Step("end")):
                word = 0
                if step.word is not None:
                    word = words.setdefault(step.word, _WORDS["words"] + len(words))
                steps.append((
                    len(texts), len(step.text), _HOW[step.how], step.width, step.place,
                    step.in_item, word, step.least, step.jump, step.value, step.mask,
                ))  # fmt: skip
                texts += step.text
        for function, word in words.items():
            self._answers[word] = lambda number, *_, function=function: function(number)
        rows = ffi.new("struct bm_text_step[]", steps)
        form = ffi.new("struct bm_text_form *", {
            "steps": rows, "step_count": len(steps), "starts": starts, "plain": list(plain),
            "texts": ffi.from_buffer("uint8_t[]", texts), "text_size": len(texts), **options,
        })  # fmt: skip
        self._text = ffi.gc(lib.bm_text_create(form), lib.bm_text_destroy)
        if self._text == ffi.NULL:
            raise MemoryError("out of memory in a C kernel")
        self._used, self._question = ffi.new("uint64_t *"), ffi.new("struct bm_text_question *")
        self._fault = new_fault()
        self._room(_BUFFER)

    def _room(self, size: int) -> None:
        self._out, self._size, self._filled = ffi.new("uint8_t[]", size), size, 0

    def block(
        self,
        block: memoryview,
        slots: Sequence[int],
        out: BinaryIO,
        path: str | os.PathLike[str],
        tree: int,
    ) -> None:
        """Write a verified tree block, with the items or pointers in some slots.

        `path`, `tree`: for errors.
        Raises CorruptImageError: for an item that does not hold what its type needs; what comes
        before it is written.
        """
        data, whole = ffi.from_buffer("uint8_t[]", block), isinstance(slots, range)
        chosen = ffi.NULL if whole else ffi.new("uint16_t[]", slots)
        arguments = data, len(block), chosen, len(slots)
        self._parts(lib.bm_text_block, arguments, len(slots) + 1, out, path, tree)

    def rows(
        self,
        structures: NDArray[Any],
        paths: Sequence[bytes],
        names: memoryview,
        columns: Mapping[str, NDArray[Any]],
        out: BinaryIO,
        path: str | os.PathLike[str],
    ) -> None:
        """Write files, a row for each.

        `structures`: of all files, rows of bytes.
        `paths`: of directories, each with the slash at its end.
        `names`: where names are.
        `columns`: of each row ``structure`` (which it has), ``directory`` (which path comes before
        its name), ``name``, ``name_size`` (byte of `names`, and how many).
        `path`: for errors.
        """
        joined, ends = b"".join(paths), np.cumsum([0, *map(len, paths)], dtype=np.uint64)
        rows = ffi.new("struct bm_text_rows *", {
            "structures": raw(structures), "width": structures.shape[1],
            "names": ffi.from_buffer("uint8_t[]", names),
            "paths": ffi.from_buffer("uint8_t[]", joined), "path_ends": raw(ends),
            **{name: raw(column) for name, column in columns.items()},
        })  # fmt: skip
        count = len(columns["structure"])
        self._parts(lib.bm_text_rows, (rows, count), count, out, path)
        self.flush(out)

    def _parts(
        self,
        kernel: Callable[..., int],
        arguments: tuple[Any, ...],
        count: int,
        out: BinaryIO,
        path: str | os.PathLike[str],
        tree: int = 0,
    ) -> None:
        """Call a kernel until so many parts are written."""
        fault, question, part = self._fault, self._question, 0
        while part < count:
            part = kernel(
                self._text, *arguments, part, self._out + self._filled,
                self._size - self._filled, self._used, question, fault,
            )  # fmt: skip
            self._filled += self._used[0]
            if part < 0:
                self.flush(out)
                fault.tree = tree
                raise_fault(path, fault)
            if question.word:
                answer = self._answers[question.word](*question.of)
                said = answer.encode("ascii") if isinstance(answer, str) else answer
                if lib.bm_text_answer(self._text, question, said, len(said), fault) < 0:
                    raise_fault(path, fault)
            elif part < count:
                if not self._filled:
                    self._room(2 * self._size)
                self.flush(out)

    def flush(self, out: BinaryIO) -> None:
        """Write what is still in the buffer."""
        out.write(bytes(ffi.buffer(self._out, self._filled)))
        self._filled = 0
