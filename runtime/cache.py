"""The disk cache: one folder of the user's, entries written whole or not at all.

Entries hold native code and pickles, so whoever can write them can run code as the
user. The folder is made with mode 0700, and one that belongs to another user or that
others may write is not used, nor is such an entry. An entry begins with the digest of
its name and the rest: one that was cut short, damaged or put under another name is
taken for absent, and written anew.

Note [size]
Entries may take `env.cache_limit()` bytes. Reading an entry sets its time; when storing
leads over the limit, those not used for longest are removed, down to KEPT of the limit,
so that the folder is not looked through at every store: a process counts what it has
written since it last looked, and looks again after a 1/LOOKS of the limit.
"""

import contextlib
import hashlib
import linecache
import os
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path

from . import env, locks

VERSION = "v2"  # of the layout of this folder
DIGEST = hashlib.sha256().digest_size
KEPT = 3 / 4  # of the limit, after entries were removed
LOOKS = 16
SOURCE = ".py"
OPEN = "others may write there"
_refused: set[Path] = set()
_written: dict[Path, int] = {}  # bytes since the folder was looked through


@dataclass(frozen=True, slots=True)
class Info:
    """Describe what the cache holds."""

    folder: Path | None
    entries: int
    bytes: int


def _default() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("retrograde", appauthor=False))


def location() -> Path:
    """Return where the cache is or would be, fit for use or not."""
    return env.cache_dir() or _default()


def problem(folder: Path) -> str:
    """Return why a folder is not trusted, or an empty string."""
    reason = _distrust(folder.stat())
    return f"{reason} (chmod 700 {folder})" if reason == OPEN else reason


def _distrust(status: os.stat_result) -> str:
    if not hasattr(os, "getuid"):
        return ""  # Windows: the user's profile is protected by its own rules
    if status.st_uid != os.getuid():
        return "it belongs to another user"
    return OPEN if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def _make(place: Path) -> None:
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir(mode=0o700, exist_ok=True)


def trouble() -> str:
    """Return why the cache is not in use, or an empty string."""
    place = location()
    try:
        _make(place)
        return problem(place)
    except OSError as error:
        return error.strerror or "it cannot be made"


def folder() -> Path | None:
    """Return the cache folder, made where it is missing; None where it is unusable.

    Warns once for each folder that is not trusted.
    """
    place = location()
    try:
        _make(place)
        reason = problem(place)
    except OSError:
        return None
    if not reason:
        return place
    if place not in _refused:
        _refused.add(place)
        text = f"the cache folder {place} is not used: {reason}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return None


def path(key: str, suffix: str) -> Path | None:
    """Return the path of an entry, whether it exists or not."""
    base = folder()
    return base / VERSION / key[:2] / f"{key}{suffix}" if base else None


def write(target: Path, data: bytes) -> bool:
    """Write a file whole or not at all; tell whether it was written.

    Other processes see the old file or the new one, never a part.
    """
    import tempfile  # which imports much, and most processes only read

    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=target.parent, prefix=".new-")
    except OSError:
        return False
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
        os.replace(name, target)
    except OSError:
        Path(name).unlink(missing_ok=True)
        return False
    return True


def keep(target: Path, data: bytes) -> bool:
    """Write a file that does not hold just this; tell whether it does now."""
    try:
        if target.read_bytes() == data:
            return True
    except OSError:
        pass  # absent
    return write(target, data)


def show_source(key: str, source: str) -> str:
    """Show generated source to tracebacks, and to people; return its file name."""
    filename = f"<retrograde {key[:16]}>"
    target = path(key, SOURCE)
    if target is not None and keep(target, source.encode()):
        filename = str(target)
    lines = source.splitlines(keepends=True)
    linecache.cache[filename] = (len(source), None, lines, filename)
    return filename


def store(key: str, suffix: str, data: bytes) -> bool:
    """Store an entry with its digest; tell whether it was stored."""
    target = path(key, suffix)
    if target is None:
        return False
    stored = write(target, _digest(target, data) + data)
    if stored:
        _account(target.parents[1], DIGEST + len(data))
    return stored


def _account(entries: Path, size: int) -> None:
    """Count what was written, and keep to the limit: see Note [size]."""
    limit = env.cache_limit()
    known = _written.get(entries)
    _written[entries] = (known or 0) + size
    if limit and (known is None or _written[entries] > limit // LOOKS):
        _written[entries] = 0
        _trim(limit)


def _trim(limit: int) -> None:
    """Remove what was not used for longest, if all takes more than the limit."""
    found = []
    for file in _files():
        try:
            status = file.stat()
        except OSError:
            continue  # another process removed it
        found.append((status.st_mtime_ns, status.st_size, file))
    total = sum(size for _, size, _ in found)
    if total <= limit:
        return
    for _, size, file in sorted(found):
        if total <= KEPT * limit:
            return
        try:
            file.unlink(missing_ok=True)
        except OSError:
            continue
        total -= size


def fetch(key: str, suffix: str) -> bytes | None:
    """Return the data of an entry, None where it is absent or damaged."""
    target = path(key, suffix)
    if target is None:
        return None
    try:
        with target.open("rb") as file:
            if _distrust(os.fstat(file.fileno())):
                return None
            whole = file.read()
    except OSError:
        return None
    data = whole[DIGEST:]
    if whole[:DIGEST] != _digest(target, data):
        return None
    with contextlib.suppress(OSError):  # of another process, or read-only
        os.utime(target)  # used now: see Note [size]
    return data


def _digest(target: Path, data: bytes) -> bytes:
    return hashlib.sha256(target.name.encode() + b"\0" + data).digest()


def alone(key: str, kind: str) -> contextlib.AbstractContextManager[bool]:
    """Hold the lock under which the entries of a key are made; see `locks`."""
    base = folder()
    file = base / VERSION / "locks" / f"{kind}-{key[:2]}" if base else None
    return locks.held(file)


def discard(key: str, suffix: str) -> None:
    """Remove an entry, if it is there."""
    target = path(key, suffix)
    if target is not None:
        try:
            target.unlink(missing_ok=True)
        except OSError:
            return


def _files() -> list[Path]:
    """Return all entries, those of other versions of the layout too."""
    base = folder()
    if base is None:
        return []
    return [file for file in base.glob("v[0-9]*/??/*") if file.is_file()]


def info() -> Info:
    """Count the files in the cache and their bytes."""
    sizes = []
    for file in _files():
        try:
            sizes.append(file.stat().st_size)
        except OSError:
            continue  # another process removed it
    return Info(folder(), len(sizes), sum(sizes))


def clear() -> int:
    """Remove every entry; return how many files there were.

    Only files of the cache are removed: the folder may hold other things.
    """
    removed = 0
    for file in _files():
        try:
            file.unlink()
            removed += 1
        except OSError:
            continue
    return removed
