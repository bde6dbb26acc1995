"""The ASGI application: its routes, and how they answer."""

import asyncio
import os
import re
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpaco import __version__
from gpaco.api.serving.answers import Model, Query, class_answer, logits_of, mask_answer, read_query
from gpaco.api.serving.batching import Batcher
from gpaco.api.serving.openapi import describe
from gpaco.api.serving.uploads import Limits, Load, Refused, Upload, decoded
from gpaco.errors import Problem
from gpaco.pages.server import server_page
from gpaco.tasks.classification.rows import ImageClassifier

BATCH = 32  # largest number of images per forward pass
LOCAL = ("localhost", "127.0.0.1", "[::1]")


def make_app(model: Model, limits: Limits, hosts: Collection[str] | None = LOCAL) -> Any:
    """Return the ASGI application that answers for a model.

    Only requests to these `hosts` are answered, to prevent DNS rebinding: a web page elsewhere cannot reach the server
    through a name that resolves to it. None allows any name.
    """
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route

    answer = answerer(model, limits)
    page = server_page(model)
    description = describe(model, limits)
    task = "classification" if isinstance(model, ImageClassifier) else "segmentation"
    load = Load(limits)

    async def predict(request: Request) -> Response:
        try:
            async with load.uploads(request) as uploads:
                asked = read_query(model, request.query_params)
                # Wait for all images even if one fails: the request counts as open until all are done.
                found = await asyncio.gather(*(answer(upload, asked) for upload in uploads), return_exceptions=True)
        except asyncio.CancelledError:  # by uvicorn, which waits for open requests only so long
            return refusal(503, "the server is stopping", "send the request again later")
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return JSONResponse({"model": model.name, "images": found})

    async def health(request: Request) -> Response:
        facts = {
            "status": "ok",
            "model": model.name,
            "task": task,
            "classes": len(model.classes),
            "requests": load.requests,
        }
        return JSONResponse(facts | {"gpaco": __version__})

    async def front(request: Request) -> Response:
        return HTMLResponse(page, headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"})

    async def openapi(request: Request) -> Response:
        return JSONResponse(description)

    def refusal(status: int, error: str, remedy: str) -> Response:
        headers = {"Retry-After": "1"} if status == 429 else {}
        return JSONResponse({"error": error, "remedy": remedy}, status, headers=headers)

    async def refuse(request: Request, error: Exception) -> Response:
        if isinstance(error, Refused):
            return refusal(error.status, error.error, error.remedy)
        if isinstance(error, Problem):  # of the model
            return refusal(500, error.cause, error.remedy)
        if isinstance(error, HTTPException):
            return refusal(error.status_code, error.detail, "see /openapi.json")
        return refusal(500, f"a bug in gpaco {__version__}: {type(error).__name__}", "see the log of the server")

    routes = [
        Route("/", front),
        Route("/predict", predict, methods=["POST"]),
        Route("/health", health),
        Route("/openapi.json", openapi),
    ]
    handlers: dict[Any, Any] = dict.fromkeys((Refused, Problem, HTTPException, Exception), refuse)
    app = Starlette(routes=routes, exception_handlers=handlers)

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        named = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        if hosts is None or re.sub(r":\d*$", "", named).lower() in hosts:
            await app(scope, receive, send)
        else:
            refused = refusal(400, f"this server is not {named[:100]!r}", "use the address it printed at startup")
            await refused(scope, receive, send)

    return guarded


def answerer(model: Model, limits: Limits) -> Callable[[Upload, Any], Any]:
    """Return a coroutine function that answers for one image, with a limit on decoded images in memory."""
    # A large image takes hundreds of megabytes while it is decoded.
    pool = ThreadPoolExecutor(min(max(2, os.cpu_count() or 1), 4), thread_name_prefix="decode")

    async def in_pool(work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(pool, work, *arguments)

    if isinstance(model, ImageClassifier):
        room = asyncio.Semaphore(limits.decoded)

        def seen(upload: Upload) -> Any:
            return model.see(decoded(upload, model.least, limits))

        def work(images: list[Any]) -> Sequence[Any]:
            return list(logits_of(model, images))

        classify: Batcher[Any, Any] = Batcher(work, BATCH)

        async def class_of(upload: Upload, asked: Query) -> dict[str, Any]:
            async with room:
                image = await in_pool(seen, upload)
                logits = await classify(image)
            return {"image": upload.name} | class_answer(model, logits, asked)

        return class_of

    room = asyncio.Semaphore(2)  # an image is decoded while the network works on another

    def draw(images: list[Any]) -> list[Any]:
        return [mask_answer(model, image) for image in images]

    segment: Batcher[Any, Any] = Batcher(draw, 1)

    async def mask_of(upload: Upload, asked: None) -> dict[str, Any]:
        async with room:
            image = await in_pool(decoded, upload, 0, limits)
            found: dict[str, Any] = await segment(image)
        return {"image": upload.name} | found

    return mask_of
