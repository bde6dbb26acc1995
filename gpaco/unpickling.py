"""A pickle as plain data. There is no unpickler here: nothing that a file says is imported, looked up or called.

A pickle is a program. `pickletools` names its instructions one by one, and the few below pile up numbers, texts, lists,
tuples and dictionaries. A global is a name and stays one (`Name`), what the program wants called is a note (`Made`),
and what it points to outside of itself is a note too (`Pointed`). All other instructions are refused.

Standard library only: this runs in a process that has nothing else (gpaco/torchfile.py).
"""

import io
import pickletools
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_INSTRUCTIONS = 5_000_000  # of one pickle; large checkpoints have a tenth of that


class Refused(Exception):
    """Why a file is not read, in one line."""


class Name(NamedTuple):
    """A global, as text."""

    text: str


class Pointed(NamedTuple):
    """Something outside of the pickle, by what the pickle says of it."""

    by: Any


@dataclass
class Made:
    """What the pickle wants made by a call: by what, from what, and what it then sets on it."""

    by: str
    arguments: tuple[Any, ...]
    state: Any = None


class Content(NamedTuple):
    """What a pickle describes, and all that it points to."""

    value: Any
    pointed: list[Pointed]


def read_pickle(stream: io.BytesIO, allowed: Collection[str], names: dict[str, None]) -> Content:
    """The pickle at this place of the stream, which is then right behind it.

    Every global goes into `names`; one that is not in `allowed` is the reason for refusal that comes before all others.
    """
    start, reason, machine = stream.tell(), "", Machine(names)
    value = None
    try:
        for instruction, argument, _ in pickletools.genops(stream):
            if instruction.name in ("GLOBAL", "INST"):
                names[str(argument).replace(" ", ".", 1)] = None
        stream.seek(start)
        value = machine.run(stream)
    except Refused as error:
        reason = str(error)
        with suppress(ValueError, OverflowError):
            stream.seek(start)
            names.update(dict.fromkeys(_named(stream)))
    except (ValueError, OverflowError) as error:
        reason = f"its pickle is damaged: {' '.join(str(error).split())[:200]}"
    if strange := [name for name in names if name not in allowed]:
        raise Refused(f"it names {', '.join(map(shown, strange[:5]))}{' and more' if len(strange) > 5 else ''}")
    if reason:
        raise Refused(reason)
    return Content(value, machine.pointed)


def _named(stream: io.BytesIO) -> Iterator[str]:
    """The globals of a pickle that cannot be followed to its end, by the two texts that come before each."""
    module, text, memo = "", "", dict[Any, str]()
    for instruction, argument, _ in pickletools.genops(stream):
        word = instruction.name
        if word == "STACK_GLOBAL":
            yield f"{module}.{text}"
        elif word in ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"):
            memo[len(memo) if word == "MEMOIZE" else argument] = text
        elif word in ("GET", "BINGET", "LONG_BINGET"):
            module, text = text, memo.get(argument, "")
        elif isinstance(argument, str) and word in _PUSHED:
            module, text = text, argument


@dataclass
class Machine:
    """Follows the instructions of one pickle."""

    names: dict[str, None]
    pointed: list[Pointed] = field(default_factory=list)
    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def run(self, stream: io.BytesIO) -> Any:
        """What the program leaves on its stack."""
        for number, (instruction, argument, _) in enumerate(pickletools.genops(stream)):
            word = instruction.name
            if word == "STOP":
                return self.pop()
            if number >= _INSTRUCTIONS:
                raise Refused(f"its pickle has more than {_INSTRUCTIONS:,} instructions")
            if word in _PUSHED:
                self.stack.append(argument)
            elif word in _FIXED:
                self.stack.append(_FIXED[word]())
            elif word in _STEPS:
                _STEPS[word](self, argument)
            else:
                raise Refused(f"its pickle has the instruction {word}, which no file of tensors needs")
        raise Refused("its pickle has no end")

    def pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise Refused("its pickle takes more from its stack than is there")
        return self.stack.pop()

    def popped(self, number: int) -> list[Any]:
        return [self.pop() for _ in range(number)][::-1]

    def top(self) -> Any:
        self.stack.append(value := self.pop())
        return value

    def since_mark(self) -> list[Any]:
        if not self.marks:
            raise Refused("its pickle goes back to a mark that is not there")
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def remember(self, place: int | None) -> None:
        self.memo[len(self.memo) if place is None else place] = self.top()

    def recall(self, place: int) -> None:
        if place not in self.memo:
            raise Refused("its pickle remembers what it never saw")
        self.stack.append(self.memo[place])

    def extend(self, items: list[Any]) -> None:
        target = self.top()
        if not isinstance(target, list):
            raise Refused(f"its pickle appends to {kind(target)}")
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.top()
        if not isinstance(target, dict):
            raise Refused(f"its pickle sets items of {kind(target)}")
        target.update(_pairs(items))

    def name(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise Refused("its pickle names a global by something that is not text")
        self.names[f"{module}.{name}"] = None
        self.stack.append(Name(f"{module}.{name}"))

    def call(self) -> None:
        what, arguments = self.popped(2)
        if not isinstance(what, Name) or not isinstance(arguments, tuple):
            raise Refused(f"its pickle calls {kind(what)} with {kind(arguments)}")
        self.stack.append(_made(what.text, arguments))

    def set_state(self) -> None:
        state, target = self.pop(), self.top()
        if isinstance(target, Made):
            target.state = state
        elif not isinstance(target, dict) or not isinstance(state, dict):  # torch notes versions on a dictionary
            raise Refused(f"its pickle sets the state of {kind(target)}")

    def point(self) -> None:
        self.pointed.append(Pointed(self.pop()))
        self.stack.append(self.pointed[-1])


_PUSHED = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
_FIXED: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
}
_STEPS: dict[str, Callable[[Machine, Any], object]] = {
    "PROTO": lambda m, version: None,
    "FRAME": lambda m, length: None,
    "MARK": lambda m, _: m.marks.append(len(m.stack)),
    "POP": lambda m, _: m.pop(),
    "POP_MARK": lambda m, _: m.since_mark(),
    "DUP": lambda m, _: m.stack.append(m.top()),
    "PUT": lambda m, place: m.remember(place),
    "BINPUT": lambda m, place: m.remember(place),
    "LONG_BINPUT": lambda m, place: m.remember(place),
    "MEMOIZE": lambda m, _: m.remember(None),
    "GET": lambda m, place: m.recall(place),
    "BINGET": lambda m, place: m.recall(place),
    "LONG_BINGET": lambda m, place: m.recall(place),
    "LIST": lambda m, _: m.stack.append(m.since_mark()),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.since_mark())),
    "TUPLE1": lambda m, _: m.stack.append(tuple(m.popped(1))),
    "TUPLE2": lambda m, _: m.stack.append(tuple(m.popped(2))),
    "TUPLE3": lambda m, _: m.stack.append(tuple(m.popped(3))),
    "DICT": lambda m, _: m.stack.append(_pairs(m.since_mark())),
    "APPEND": lambda m, _: m.extend(m.popped(1)),
    "APPENDS": lambda m, _: m.extend(m.since_mark()),
    "SETITEM": lambda m, _: m.set_items(m.popped(2)),
    "SETITEMS": lambda m, _: m.set_items(m.since_mark()),
    "GLOBAL": lambda m, both: m.name(*both.split(" ", 1)),
    "STACK_GLOBAL": lambda m, _: m.name(*m.popped(2)),
    "REDUCE": lambda m, _: m.call(),
    "NEWOBJ": lambda m, _: m.call(),
    "BUILD": lambda m, _: m.set_state(),
    "BINPERSID": lambda m, _: m.point(),
}


def _made(by: str, arguments: tuple[Any, ...]) -> Any:
    """What a call stands for: a dictionary, bytes, or a note of the call."""
    match by, arguments:
        case "collections.OrderedDict", ():
            return {}
        case "collections.OrderedDict", (list(items),) if all(_is_pair(item) for item in items):
            return _pairs([part for item in items for part in item])
        case "_codecs.encode", (str(text), "latin1" | "latin-1"):
            return text.encode("latin-1")
        case "numpy.dtype", (str(word), *_) if re.fullmatch(r"[<>|=]?[biufc]\d{1,2}", word):
            return Made(by, arguments)
        case "numpy.dtype", _:
            raise Refused("it holds a numpy array of something else than numbers")
        case (("collections.OrderedDict" | "_codecs.encode"), _):
            raise Refused(f"its pickle calls {by} with something strange")
    return Made(by, arguments)


def _pairs(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise Refused("its pickle has a key without a value")
    for key in items[::2]:
        # Taking the hash of a deeply nested tuple would overflow the stack.
        if key is not None and not isinstance(key, str | int | float | bytes):
            raise Refused(f"its pickle has {kind(key)} as the key of a dictionary")
    return dict(zip(items[::2], items[1::2], strict=True))


def _is_pair(item: Any) -> bool:
    return isinstance(item, list | tuple) and len(item) == 2


def kind(value: Any) -> str:
    """What a value is, for a message; never the value itself, which may be huge.

    >>> kind([1]), kind(None), kind(Made("torch.device", ("cpu",)))
    ('a list', 'None', "a 'torch.device'")
    """
    if isinstance(value, Made):
        return f"a {shown(value.by)}"
    if isinstance(value, Name):
        return f"the global {shown(value.text)}"
    if isinstance(value, Pointed):
        return "a storage"
    return "None" if value is None else f"a {type(value).__name__}"


def shown(text: str) -> str:
    """Text of a file on one line of a message."""
    return repr(text if len(text) <= 100 else f"{text[:97]}...")
