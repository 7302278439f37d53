"""JSON with positions: entries that know their line, for error messages.

Model: a file is one object whose fields are values or lists; each field, and each element of a
list, is an `Entry` that knows where it begins. Below that, plain JSON.
Invariants: every failure is a `ProgramFileError` that names the file and a line.
Thread rule: a reader belongs to one thread. Cost: linear.
"""

from __future__ import annotations

import bisect
import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Any

from coop_jax._src.util.errors import ProgramFileError
from coop_jax._src.util.options import shown

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A value of the file and where it begins."""

    reader: Reader
    value: Any
    at: int
    elements: tuple[Entry, ...] = ()

    def fail(self, problem: str) -> ProgramFileError:
        """The error for this entry."""
        return self.reader.fail(problem, self.at)

    def check(self, holds: bool, problem: str) -> None:
        """Raises the error if it does not hold."""
        if not holds:
            raise self.fail(problem)

    @staticmethod
    def is_number(value: Any) -> bool:
        """Whether a value is a whole number."""
        return isinstance(value, int) and not isinstance(value, bool)

    def entries(self) -> tuple[Entry, ...]:
        """The elements of a list."""
        self.check(isinstance(self.value, list), "expected a list")
        return self.elements

    def number(self) -> int:
        """A whole number."""
        self.check(self.is_number(self.value), f"expected a number, got {shown(self.value)}")
        return int(self.value)

    def numbers(self, count: int) -> Sequence[int]:
        """A list of so many whole numbers."""
        self.check(
            isinstance(self.value, list)
            and len(self.value) == count
            and all(map(self.is_number, self.value)),
            f"expected {count} numbers, got {shown(self.value)}",
        )
        return self.value  # type: ignore[no-any-return]

    def flag(self, value: Any) -> bool:
        """A flag: 0 or 1."""
        self.check(
            self.is_number(value) and value in (0, 1), f"expected 0 or 1, got {shown(value)}"
        )
        return bool(value)

    def field(self, key: str, kind: Any, default: Any = None) -> Any:
        """A field of an object, of this type; the default, if there is one, where it is missing."""
        self.check(isinstance(self.value, dict), "expected an object")
        value = self.value.get(key, default)
        self.check(
            isinstance(value, kind) and not isinstance(value, bool),
            f"{key!r} is missing" if value is None else f"{key!r} is wrong: {shown(value)}",
        )
        return value


class Reader:
    """A file, and where its lines begin."""

    def __init__(self, name: str, text: str):
        self._name = name
        self._text = text
        self._line_ends = [m.start() for m in re.finditer("\n", text)]

    def fail(self, problem: str, at: int) -> ProgramFileError:
        """The error for a place in the file."""
        line = bisect.bisect_left(self._line_ends, at) + 1
        return ProgramFileError(f"{self._name}, line {line}: {problem}", line)

    def top_level(self, keys: Sequence[str]) -> dict[str, Entry]:
        """The fields of the object that the file is.

        Raises:
          ProgramFileError: no JSON, a field that is missing, unknown or there twice.
        """
        fields: dict[str, Entry] = {}
        at = self._expect(0, "{")
        while not self._is(at, "}"):
            if fields:
                at = self._expect(at, ",")
            key = self._decode(at)
            if not isinstance(key.value, str) or key.value not in keys or key.value in fields:
                raise key.fail(f"field {shown(key.value)} is unknown or there twice")
            fields[key.value], at = self._value(self._expect(self._end, ":"))
        end = self._skip(self._expect(at, "}"))
        if end != len(self._text):
            raise self.fail("something follows the end of the program", end)
        for key_name in keys:
            if key_name not in fields:
                raise self.fail(f"field {key_name!r} is missing", end)
        return fields

    def _value(self, at: int) -> tuple[Entry, int]:
        at = self._skip(at)
        if not self._is(at, "["):
            entry = self._decode(at)
            return entry, self._end
        elements: list[Entry] = []
        begin, at = at, at + 1
        while not self._is(at, "]"):
            if elements:
                at = self._expect(at, ",")
            elements.append(self._decode(at))
            at = self._end
        end = self._expect(at, "]")
        return Entry(self, [e.value for e in elements], begin, tuple(elements)), end

    def _decode(self, at: int) -> Entry:
        at = self._skip(at)
        try:
            value, self._end = _DECODER.raw_decode(self._text, at)
        except json.JSONDecodeError as error:
            raise self.fail(f"this is not JSON ({error.msg})", error.pos) from error
        except RecursionError as error:
            raise self.fail("nested too deeply", at) from error
        except ValueError as error:  # Python reads no numbers of thousands of digits
            raise self.fail(f"a number that is too long ({error})", at) from error
        return Entry(self, value, at)

    def _skip(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        return match.end() if match else at

    def _is(self, at: int, text: str) -> bool:
        return self._text.startswith(text, self._skip(at))

    def _expect(self, at: int, text: str) -> int:
        at = self._skip(at)
        if not self._text.startswith(text, at):
            found = self._text[at : at + 10]
            problem = f"found {found!r}" if found else "the file ends"
            raise self.fail(f"expected {text!r}, but {problem}", at)
        return at + len(text)
