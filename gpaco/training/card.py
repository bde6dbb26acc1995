"""Cards: everything needed to use a trained model again, as a frozen dataclass per task, stored as JSON.

A card is stored with every checkpoint. Its types are checked once, when it is read.
"""

import json
from dataclasses import asdict, fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from gpaco.errors import UserError

Card = TypeVar("Card")


def write_card(card: Any) -> dict[str, Any]:
    """Return the card after a round trip through JSON, with lists for tuples, to compare it with a stored one."""
    return dict(json.loads(json.dumps(asdict(card))))


def read_card(kind: type[Card], found: dict[str, Any], where: str) -> Card:
    """Return the card of type `kind` in `found`; `where` names its checkpoint in messages."""
    hints = get_type_hints(kind)
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if wrong := sorted(names ^ found.keys()):
        raise UserError(f"{where} was written by another version of gpaco: {wrong[0]} differs", "train again")
    values = {}
    for name in names:
        value = _typed(found[name], hints[name])
        if value is _WRONG:
            raise UserError(f"{where} has a wrong value for {name}: {found[name]!r}", "restore it from a backup")
        values[name] = value
    return kind(**values)


_WRONG = object()


def _typed(value: Any, kind: Any) -> Any:
    """Return the value as `kind`, or `_WRONG`. JSON has lists where cards have tuples, and 1 where they have 1.0."""
    if isinstance(kind, UnionType):
        return next((got for option in get_args(kind) if (got := _typed(value, option)) is not _WRONG), _WRONG)
    if kind is float and type(value) is int:
        return float(value)
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        items = tuple(_typed(item, get_args(kind)[0]) for item in value)
        return _WRONG if _WRONG in items else items
    if get_origin(kind) is dict and isinstance(value, dict):
        typed = {str(key): _typed(item, get_args(kind)[1]) for key, item in value.items()}
        return _WRONG if _WRONG in typed.values() else typed
    if is_dataclass(kind) and isinstance(value, dict) and value.keys() == {field.name for field in fields(kind)}:
        typed = {name: _typed(value[name], hint) for name, hint in get_type_hints(kind).items()}
        return _WRONG if _WRONG in typed.values() else kind(**typed)  # type: ignore[operator] # a class, not an object
    return value if type(value) is kind else _WRONG
