"""One mapping of a configuration file: typed access to its keys, errors that name the place, and what was left over."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from estimators.errors import IllegalCombination, InputError, closest, short
from estimators.knobs import Knob
from estimators.readers.reading import AUTO, Draft, Ignored, Value
from estimators.readers.safe import Document

_NUMBER = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,3})?")
_TRUE = ("y", "yes", "t", "true", "on", "1")  # accelerate.utils.environment.str_to_bool
_FALSE = ("n", "no", "f", "false", "off", "0")
_LARGEST = 2**63 - 1


class Section:
    """A view of ``data`` at ``path`` of a document. Keys that nobody asked for are reported by ``leftover``."""

    def __init__(
        self,
        document: Document,
        data: Mapping[str, Any],
        path: str = "",
        label: str = "",
        written: Mapping[str, str] | None = None,
    ) -> None:
        self.document, self.data, self.path, self.label = document, data, path, label
        self._written = written or {}  # key -> its spelling in the file, where that differs
        self._asked: set[str] = set()

    def renamed(self, rename: Callable[[str], str]) -> Section:
        """The same section under other keys; places keep the spelling of the file. Raises when two become one."""
        written: dict[str, str] = {}
        for key in self.data:
            if rename(key) in written:
                raise self.contradiction(key, f"is another spelling of {written[rename(key)]}; keep one")
            written[rename(key)] = key
        return Section(
            self.document, {new: self.data[old] for new, old in written.items()}, self.path, self.label, written
        )

    def __contains__(self, key: str) -> bool:
        return self.data.get(key) is not None

    def where(self, key: str) -> str:
        """The key path as a reading shows it; a value of a file that was followed starts with that file's name."""
        return f"{self.label}{self.path}{self._written.get(key, key)}"

    def line(self, key: str) -> int | None:
        return self.document.lines.get(self.path + self._written.get(key, key))

    def found(self, key: str, value: Any, given: bool = True) -> Value:
        return Value(value, self.where(key), self.line(key) if given else None, given)

    def error(self, key: str, message: str, kind: type[InputError] = InputError) -> InputError:
        """An error at a key: file, line, key path, what is wrong and what to write."""
        line = self.line(key)
        at = f"{self.document.name}, line {line}" if line else self.document.name
        return kind(f"{at}: {self.path}{self._written.get(key, key)}: {message}")

    def contradiction(self, key: str, message: str) -> InputError:
        return self.error(key, message, IllegalCombination)

    # ------------------------------------------------------------------------------------------------------- reading

    def raw(self, key: str) -> Any:
        """The value as it stands; None when the key is absent or null."""
        self._asked.add(key)
        return self.data.get(key)

    def flag(self, key: str, *, text: bool = False, auto: bool = False) -> Any:
        """A boolean; ``text`` allows the words that accelerate reads as one, ``auto`` allows ``"auto"``."""
        value = self.raw(key)
        if value is None or isinstance(value, bool) or (auto and value == AUTO):
            return value
        if text and isinstance(value, str | int) and str(value).lower() in _TRUE + _FALSE:
            return str(value).lower() in _TRUE
        if isinstance(value, int) and value in (0, 1):
            return bool(value)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            raise self.error(key, f"{value!r} is text; write {value.lower()} without quotes")
        raise self.error(key, f"{short(value)} is not true or false")

    def number(self, key: str, *, auto: bool = False) -> Any:
        """A finite number, also one written as text ("5e8"); a whole one comes as int."""
        value = self.raw(key)
        if value is None or (auto and value == AUTO):
            return value
        if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
            value = float(value) if re.search(r"[.eE]", value) else int(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.error(key, f"{short(value)} is not a number")
        return int(value) if float(value).is_integer() else value

    def whole(self, key: str, minimum: int = 0, maximum: int = _LARGEST, *, auto: bool = False) -> Any:
        """A whole number inside a range."""
        value = self.number(key, auto=auto)
        if value is None or value == AUTO:
            return value
        if not isinstance(value, int):
            raise self.error(key, f"{value} is not a whole number")
        if not minimum <= value <= maximum:
            raise self.error(key, f"{short(value)} is out of range; give {minimum:,} to {maximum:,}")
        return value

    def word(self, key: str, known: Iterable[str] | None = None, fold: Callable[[str], str] = str) -> str | None:
        """Text, folded and then one of ``known`` where that is given."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.error(key, f"{short(value)} is not text")
        folded = fold(value)
        if known is None or folded in (words := list(known)):
            return folded
        raise self.error(key, f"unknown value {short(value)}; write {' or '.join(closest(value, words) or words[:8])}")

    def words(self, key: str) -> tuple[str, ...] | None:
        """A list of text, or text with commas."""
        value = self.raw(key)
        items = value.split(",") if isinstance(value, str) else value
        if items is None:
            return None
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise self.error(key, f"{short(value)} is not a list of names")
        return tuple(item.strip() for item in items if item.strip())

    def section(self, key: str, instead: str = "") -> Section | None:
        """The mapping under a key. ``instead`` completes the advice where something else stands there."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(key, f"{short(value)} is not a mapping{'; write ' + instead if instead else ''}")
        return Section(self.document, value, f"{self.path}{key}.", self.label)

    def knob(self, key: str, knob: Knob) -> Any:
        """The value of an engine's knob, in its type and range; ``"auto"`` passes."""
        if isinstance(knob.kind, tuple):
            value: Any = self.word(key, knob.kind)
        elif knob.kind == "bool":
            value = self.flag(key, auto=True)
        else:
            value = self.number(key, auto=True)
        if value is None or value == AUTO:
            return value
        try:
            return knob.check(value)
        except InputError as error:
            raise self.error(key, str(error).partition(": ")[2]) from None

    # ------------------------------------------------------------------------------------------------------ leftovers

    def leftover(self, draft: Draft, known: Collection[str], why: str, unknown: str) -> None:
        """Record every key that was not asked for: without effect when ``known``, else unknown."""
        candidates = frozenset({*known, *self._asked})
        for key, value in self.data.items():
            if key in self._asked or key.startswith("_"):  # "_comment" and the like
                continue
            if key in known:
                draft.ignored.append(Ignored(self.where(key), value, why, self.line(key)))
            else:
                draft.ignored.append(Ignored(self.where(key), value, unknown, self.line(key), False, candidates))

    def ignore(self, draft: Draft, key: str, why: str) -> None:
        """Record a key that was read and has no effect here."""
        self._asked.add(key)
        draft.ignored.append(Ignored(self.where(key), self.data.get(key), why, self.line(key)))
