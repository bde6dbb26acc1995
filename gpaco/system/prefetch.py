"""Results that threads compute before they are needed. Needs no torch."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use, at most 8."""
    affinity = getattr(os, "sched_getaffinity", None)
    return min(len(affinity(0)) if affinity else os.cpu_count() or 1, 8)


THREADS = max(2, usable_cpus())


def prefetch(
    compute: Callable[[Item], Result], items: Iterable[Item], *, ahead: int, threads: int = THREADS
) -> Iterator[Result]:
    """Yield the result for each item, in order, while threads compute those of the next `ahead` items.

    >>> list(prefetch(abs, [3, -1, 2], ahead=2))
    [3, 1, 2]
    """
    pool, remaining = ThreadPoolExecutor(threads), iter(items)
    try:
        waiting = deque(pool.submit(compute, item) for item in islice(remaining, ahead))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(compute, item) for item in islice(remaining, 1))
            yield result
    finally:
        pool.shutdown(cancel_futures=True)
