"""Batches images of different requests for the model."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batcher(Generic[Item, Answer]):
    """Answers items in its own thread, in batches of those that are waiting, at most `most` at a time.

    It never waits for a batch to fill, so a single item is answered at once. Python waits for the thread when it ends.
    """

    def __init__(self, work: Callable[[list[Item]], Sequence[Answer]], most: int) -> None:
        self.work, self.most = work, most
        self.waiting: SimpleQueue[tuple[Item, asyncio.Future[Answer]]] = SimpleQueue()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="model")

    async def __call__(self, item: Item) -> Answer:
        """Return the answer to an item."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.waiting.put((item, future))
        self.thread.submit(self._answer)
        return await future

    def _answer(self) -> None:
        """Answer the next batch; nobody is waiting if earlier batches had all items."""
        size = min(self.most, fitting(self.waiting.qsize() or 1), self.waiting.qsize())
        batch = [self.waiting.get() for _ in range(size)]
        batch = [(item, future) for item, future in batch if not future.done()]  # clients may have gone
        if not batch:
            return
        futures = [future for _, future in batch]
        answers: Sequence[Answer] = ()
        failure: Exception | None = None
        try:
            answers = self.work([item for item, _ in batch])
        except Exception as error:  # passed on to everyone who waits
            failure = error
        with suppress(RuntimeError):  # the event loop is closed: nobody is waiting
            futures[0].get_loop().call_soon_threadsafe(_tell, futures, answers, failure)


def fitting(number: int) -> int:
    """Return the largest power of two up to a number: backends prepare for each new batch size, so use few.

    >>> fitting(1), fitting(31), fitting(64)
    (1, 16, 64)
    """
    return 1 << (number.bit_length() - 1)


def _tell(futures: list["asyncio.Future[Answer]"], answers: Sequence[Answer], failure: Exception | None) -> None:
    for place, future in enumerate(futures):
        if future.done():  # the client has gone
            continue
        if failure is not None:
            future.set_exception(failure)
        else:
            future.set_result(answers[place])
