"""Results that threads compute before they are needed."""

import threading
from itertools import count, islice

import pytest

from gpaco.system.prefetch import prefetch


def test_results_are_in_order_although_the_first_takes_longest() -> None:
    others = threading.Event()

    def compute(item: int) -> int:
        if item == 0:
            assert others.wait(60)
        elif item == 2:
            others.set()
        return 10 * item

    assert list(prefetch(compute, range(4), ahead=3, threads=2)) == [0, 10, 20, 30]
    assert list(prefetch(compute, [], ahead=3)) == []


def test_no_more_than_ahead_items_are_taken_before_they_are_needed() -> None:
    taken = count()
    results = prefetch(abs, (next(taken) for _ in count()), ahead=5)
    assert list(islice(results, 3)) == [0, 1, 2]
    assert next(taken) == 3 + 5


def test_an_error_is_raised_in_its_place() -> None:
    results = prefetch(lambda item: 1 // item, [1, 0, 1], ahead=3)
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_closed_early_it_leaves_no_thread() -> None:
    threads = threading.active_count()
    results = prefetch(abs, count(), ahead=50, threads=1)
    assert next(results) == 0
    assert threading.active_count() == threads + 1
    results.close()
    assert threading.active_count() == threads
