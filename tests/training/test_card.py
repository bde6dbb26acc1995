"""Cards: what comes back is what was written, and anything else is refused in one line."""

import json
from dataclasses import dataclass

import pytest

from gpaco.errors import UserError
from gpaco.training.card import read_card, write_card


@dataclass(frozen=True)
class Card:
    """A card with every kind of field."""

    name: str
    size: int
    share: float
    whole: bool
    counts: tuple[int, ...] | None
    palette: tuple[tuple[int, ...], ...]
    images: dict[str, str]


CARD = Card("a", 3, 0.5, True, (1, 2), ((0, 1, 2), (3, 4, 5)), {"train": "abc"})


def test_a_card_comes_back_from_json_as_it_was() -> None:
    for card in (CARD, Card("", 0, 1.0, False, None, (), {})):
        assert read_card(Card, json.loads(json.dumps(write_card(card))), "here") == card


def test_whole_numbers_are_taken_for_floats_but_nothing_else_is_converted() -> None:
    found = write_card(CARD)
    assert read_card(Card, found | {"share": 1}, "here").share == 1.0
    for wrong in ({"size": "3"}, {"size": True}, {"name": 3}, {"counts": [1, "2"]}, {"images": []}, {"palette": [1]}):
        with pytest.raises(UserError, match=f"here has a wrong value for {next(iter(wrong))}"):
            read_card(Card, found | wrong, "here")


def test_missing_and_further_fields_are_of_another_version() -> None:
    found = write_card(CARD)
    with pytest.raises(UserError, match="another version of gpaco: size differs"):
        read_card(Card, {name: value for name, value in found.items() if name != "size"}, "here")
    with pytest.raises(UserError, match="another version of gpaco: more differs"):
        read_card(Card, found | {"more": 1}, "here")
