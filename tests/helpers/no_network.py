"""Blocks network access beyond this machine."""

import sys
from ipaddress import ip_address
from typing import Any

ASKS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")


def beyond(event: str, arguments: tuple[Any, ...]) -> str:
    """Return the address of a Python audit event if it is beyond this machine, else ""."""
    if event not in ASKS:
        return ""
    place = arguments[0] if event.startswith("socket.get") else arguments[1]
    host = place[0] if isinstance(place, tuple) else place  # the address of a Unix socket is a path
    if event in ("socket.connect", "socket.sendto") and not isinstance(place, tuple):
        return ""
    if host in (None, "", "localhost", b"localhost"):
        return ""
    try:
        own = ip_address(host.decode() if isinstance(host, bytes) else host).is_loopback
    except ValueError:
        own = False
    return "" if own else f"{event} {host}"


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if asked := beyond(event, arguments):
        raise RuntimeError(f"a test asks for a network: {asked}")


def block() -> None:
    """Refuse all sockets of Python that lead beyond this machine, in this process and its forks."""
    sys.addaudithook(refuse)
