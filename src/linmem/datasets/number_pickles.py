"""Pickles of nothing but numbers, read without unpickling.

The piano rolls were published as Python 2 pickles. `pickle.load` runs whatever program a file contains. Here the
opcodes are only looked at: those that build lists, tuples, dictionaries, strings and integers are understood,
NumPy's integers among them, and any other is refused.
"""

from __future__ import annotations

import pickletools
from typing import Any

#: The only names from modules that a file may mention: NumPy's, under their old and new paths, and what Python 3 writes
#: bytes with where a file is for Python 2.
SCALAR, DTYPE, ENCODE = object(), object(), object()
NAMES = {
    "_codecs encode": ENCODE,
    "numpy.core.multiarray scalar": SCALAR,
    "numpy._core.multiarray scalar": SCALAR,
    "numpy dtype": DTYPE,
}

#: Files with more opcodes are refused: the largest of the published ones has a few million.
MOST_OPCODES = 20_000_000


def loads(data: bytes) -> Any:
    """Return what a pickle of lists, tuples, dictionaries, strings and integers holds.

    Raises
    ------
    ValueError
        If it is no pickle, is truncated, or holds anything else.

    Examples
    --------
    >>> import pickle
    >>> loads(pickle.dumps({"train": [[(60, 64), ()]]}))
    {'train': [[(60, 64), ()]]}
    >>> loads(pickle.dumps(print))
    Traceback (most recent call last):
        ...
    ValueError: opcode STACK_GLOBAL with 'builtins print': expected a complete pickle of numbers only
    """
    try:
        return Machine().run(data)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{' '.join(str(error).split())}: expected a complete pickle of numbers only") from None


class Integers:
    """A NumPy dtype of integers: how wide they are, and whether they have a sign and the larger end first."""

    def __init__(self, name: Any) -> None:
        name = text(name)
        kind = name.lstrip("<>|=")
        if kind[:1] not in ("i", "u") or kind[1:] not in ("1", "2", "4", "8"):
            raise ValueError(f"dtype {name[:20]!r}, not of integers")
        self.size, self.signed, self.big = int(kind[1:]), kind[0] == "i", name.startswith(">")

    def number(self, data: bytes) -> int:
        """Return the integer that these bytes are."""
        if len(data) != self.size:
            raise ValueError(f"{len(data)} bytes for an integer of {self.size}")
        return int.from_bytes(data, "big" if self.big else "little", signed=self.signed)


class Machine:
    """The stack machine of pickles, as far as numbers need it."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # what was on the stack when a mark was set
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        """Return what is on the stack at the end."""
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count > MOST_OPCODES:
                raise ValueError(f"more than {MOST_OPCODES} opcodes")
            if opcode.name == "STOP":
                (result,) = self.stack
                return result
            self.step(opcode.name, argument)
        raise ValueError("no end")

    def step(self, opcode: str, argument: Any) -> None:
        """Do what one opcode says."""
        stack = self.stack
        match opcode:
            case _ if opcode in PUSHES:
                stack.append(argument)
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                self.below.append(stack)
                self.stack = []
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self.memo[argument])
            case "NONE" | "NEWTRUE" | "NEWFALSE":  # in what describes a dtype
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode])
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "EMPTY_DICT":
                stack.append({})
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                items = [stack.pop() for _ in range(int(opcode[-1]))]
                stack.append(tuple(items[::-1]))
            case "LIST":
                items = self.since_mark()
                self.stack.append(items)
            case "TUPLE":
                items = self.since_mark()
                self.stack.append(tuple(items))
            case "DICT":
                items = self.since_mark()
                self.stack.append(pairs(items))
            case "APPEND":
                item = stack.pop()
                self.top(list).append(item)
            case "APPENDS":
                items = self.since_mark()
                self.top(list).extend(items)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                self.top(dict).update(pairs([key, value]))
            case "SETITEMS":
                items = self.since_mark()
                self.top(dict).update(pairs(items))
            case "GLOBAL":
                stack.append(named(opcode, argument))
            case "STACK_GLOBAL":
                name, module = text(stack.pop()), text(stack.pop())
                stack.append(named(opcode, f"{module} {name}"))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(integers_or_number(function, arguments))
            case "BUILD":  # the state of a dtype, of which only the order of bytes matters
                state, integers = stack.pop(), self.top(Integers)
                integers.big = state[1] == ">"
            case _:
                raise ValueError(f"opcode {opcode}")

    def since_mark(self) -> list[Any]:
        """Take everything from the last mark on off the stack."""
        items, self.stack = self.stack, self.below.pop()
        return items

    def top(self, kind: type) -> Any:
        """Return what is on top of the stack, which must be of this kind."""
        if type(self.stack[-1]) is not kind:
            raise ValueError(f"a {type(self.stack[-1]).__name__} in place of a {kind.__name__}")
        return self.stack[-1]


#: Opcodes that push their argument.
PUSHES = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "STRING", "BINSTRING", "SHORT_BINSTRING"}
PUSHES |= {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES"}


def pairs(items: list[Any]) -> dict[Any, Any]:
    """Return keys and values that stand in turn as a dictionary.

    Keys are strings: to hash a deeply nested tuple takes a deep stack, and one with many references to itself for ever.
    """
    return dict(zip(map(text, items[::2]), items[1::2], strict=True))


def text(item: Any) -> str:
    """Return what must be a string."""
    if not isinstance(item, str):
        raise ValueError(f"a {type(item).__name__} in place of a string")
    return item


def named(opcode: str, name: str) -> object:
    """Return what stands for one of the names that a file may mention."""
    if name not in NAMES:
        raise ValueError(f"opcode {opcode} with {name[:80]!r}")
    return NAMES[name]


def integers_or_number(function: object, arguments: Any) -> Any:
    """Return what the three functions make of their arguments."""
    if function is ENCODE:
        return text(arguments[0]).encode("latin-1")
    if function is DTYPE:
        return Integers(arguments[0])
    if function is SCALAR and isinstance(arguments[0], Integers):
        data = arguments[1]
        return arguments[0].number(data if isinstance(data, bytes) else text(data).encode("latin-1"))
    raise ValueError("opcode REDUCE")
