"""How processes share the items of some work. Needs no torch: `distributed.shared_work` is for several of them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Work(NamedTuple):
    """Who does what, and how the results come together."""

    rounds: Callable[[int, int], Sequence[Sequence[int]]]  # n items, items in a round -> the own ones of each round
    collect: Callable[[Sequence[Any]], list[Any]]  # the results of all processes in a round, in order
    first: bool  # whether this process writes the results
    processes: int


def _all_items(n: int, size: int) -> list[range]:
    return [range(start, min(start + size, n)) for start in range(0, n, size)]


ALONE = Work(_all_items, list, first=True, processes=1)
