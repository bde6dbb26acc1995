"""Uploaded images: read within limits, or refused with a message."""

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpaco.data.images import BadImageError, Pixels, decode_image
from gpaco.system.words import plural

FEWER, EXAMPLE = "send fewer images at a time", "for example: curl -F images=@photo.jpg ADDRESS/predict"

_TAIL = 1024  # bytes at the end of a request, which must have its last boundary


@dataclass(frozen=True)
class Limits:
    """What the server accepts."""

    upload: int = 32 * 2**20  # bytes per request
    images: int = 64  # per request
    pixels: int = 50_000_000  # per image
    seconds: float = 60.0  # for a request to arrive
    requests: int = 128  # at a time; further ones get a 429
    bytes: int = 2**29  # of all requests at a time
    decoded: int = 128  # images in memory at a time
    connections: int = 1024  # at a time; further ones get a 503
    patience: float = 5.0  # seconds for a client that is refused to finish sending
    ending: int = 90  # seconds to answer open requests after a signal


class Refused(Exception):
    """A refused request: HTTP status, error and remedy."""

    def __init__(self, status: int, error: str, remedy: str) -> None:
        super().__init__(error)
        self.status, self.error, self.remedy = status, error, remedy


class Upload(NamedTuple):
    """A file as it was sent."""

    name: str
    content: bytes


class Load:
    """The requests and bytes that the server is working on."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.requests, self.bytes = limits, 0, 0

    @asynccontextmanager
    async def uploads(self, request: Any) -> AsyncIterator[list[Upload]]:
        """Yield the files of a request, which counts toward the load while they are in use."""
        if self.requests >= self.limits.requests:
            await drain(request, self.limits)
            raise self.busy()
        taken = 0

        async def receive() -> MutableMapping[str, Any]:
            nonlocal taken
            message: MutableMapping[str, Any] = await request.receive()
            taken += len(message.get("body", b""))
            self.bytes += len(message.get("body", b""))
            if taken > self.limits.upload:
                raise too_large(self.limits)
            if self.bytes > self.limits.bytes:
                raise self.busy()
            return message

        self.requests += 1
        try:
            yield await read_uploads(request, receive, self.limits)
        finally:
            self.requests -= 1
            self.bytes -= taken

    def busy(self) -> Refused:
        return Refused(429, "the server is busy", "send the request again in a second")


async def drain(request: Any, limits: Limits) -> None:
    """Read the rest of a request that is refused: a client that is still sending would not read the answer."""
    from starlette.requests import ClientDisconnect

    with suppress(ClientDisconnect, TimeoutError):
        async with asyncio.timeout(limits.patience):
            async for _ in request.stream():
                pass


def wrong_names() -> Refused:
    return Refused(400, "a file name is not valid text", "send names in UTF-8")


def too_large(limits: Limits) -> Refused:
    return Refused(413, f"the upload is larger than {limits.upload / 2**20:g} MB", FEWER)


async def read_uploads(request: Any, receive: Any, limits: Limits) -> list[Upload]:
    """Return the files of a multipart request, whose messages `receive` returns."""
    from starlette.datastructures import UploadFile
    from starlette.exceptions import HTTPException
    from starlette.formparsers import MultiPartException
    from starlette.requests import ClientDisconnect, Request

    tail, kind = b"", request.headers.get("content-type", "")
    if not kind.startswith("multipart/form-data"):
        await drain(request, limits)
        raise Refused(415, "the images must be sent as multipart/form-data", EXAMPLE)
    stated = request.headers.get("content-length", "0")
    if stated.isdigit() and int(stated) > limits.upload:
        await drain(request, limits)
        raise too_large(limits)

    boundary = kind.partition("boundary=")[2].split(";")[0].strip('" ')
    last = f"--{boundary}--".encode()

    async def noting_the_end() -> MutableMapping[str, Any]:
        nonlocal tail
        message: MutableMapping[str, Any] = await receive()
        tail = (tail + message.get("body", b""))[-_TAIL:]
        if boundary and not message.get("more_body", False) and last not in tail:
            raise MultiPartException("it ended early")
        return message

    try:
        async with asyncio.timeout(limits.seconds):
            form = await Request(request.scope, noting_the_end).form(max_files=limits.images, max_fields=8)
    except TimeoutError:
        raise Refused(408, f"the upload took longer than {limits.seconds:g} s", FEWER) from None
    except ClientDisconnect:
        raise Refused(400, "the upload ended early", "send it again") from None
    except HTTPException as error:
        if "Too many files" in error.detail:
            raise Refused(413, f"the upload has more than {plural(limits.images, 'image')}", FEWER) from None
        raise Refused(400, f"the upload cannot be read: {error.detail}", EXAMPLE) from None
    except UnicodeError:
        raise wrong_names() from None
    try:
        files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
        if not files:
            raise Refused(400, "there is no image in the request", EXAMPLE)
        names = [file.filename or f"image {k}" for k, file in enumerate(files, 1)]
        "".join(names).encode()  # a lone surrogate cannot be sent back
        return [Upload(name, await file.read()) for name, file in zip(names, files, strict=True)]
    except UnicodeError:
        raise wrong_names() from None
    finally:
        await form.close()


def decoded(upload: Upload, least: int, limits: Limits) -> Pixels:
    """Return the pixels of an uploaded file."""
    try:
        return decode_image(upload.content, upload.name, least, limits.pixels)
    except BadImageError as error:
        reason = error.reason if upload.content else "the file is empty"
        raise Refused(422, f"cannot read {upload.name!r}: {reason}", "send a common image, such as a JPEG") from None
