"""A disk and a network of one's own, for this process and its children: what `unshare -Urm` and `-Urn` do."""

import ctypes
import os
from pathlib import Path

NEW_USER, NEW_MOUNTS, NEW_NETWORK = 0x10000000, 0x00020000, 0x40000000
READ_ONLY, REMOUNT = 1, 32
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def unshare(kind: int) -> None:
    """Leave the mounts or the network that other processes see; an OSError where a user may not do that."""
    user, group = os.geteuid(), os.getegid()
    _checked(_libc.unshare(NEW_USER | kind))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def mount_disk(folder: Path, size: int, flags: int = 0) -> None:
    """Mount an empty disk of this size on the folder, or change it with REMOUNT."""
    _checked(_libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, f"size={size}".encode()))
