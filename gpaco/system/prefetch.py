"""Results that threads compute before they are needed. Needs no torch."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS = max(2, os.cpu_count() or 1)


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
