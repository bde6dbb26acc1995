"""How processes share the items of some work. Needs no torch; for several processes, see `distributed.shared_work`."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Work(NamedTuple):
    """Which process works on which items, and how results are collected."""

    rounds: Callable[[int, int], Sequence[Sequence[int]]]  # n items, items per round -> those of this process per round
    collect: Callable[[Sequence[Any]], list[Any]]  # results of this process in a round -> those of all, in order
    first: bool  # whether this process writes the results
    processes: int


def _all_items(n: int, size: int) -> list[range]:
    return [range(start, min(start + size, n)) for start in range(0, n, size)]


ALONE = Work(_all_items, list, first=True, processes=1)
