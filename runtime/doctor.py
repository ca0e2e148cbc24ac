"""Say what this installation has: for bug reports and for people whose code is slow."""

import importlib.metadata
import os
import platform
import sys

import llvmlite.binding as llvm

from . import blas, cache, env, threads, vecmath
from .devices import packages

PACKAGES = ("numpy", "numba", "llvmlite", "scipy")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _threads() -> str:
    limits = [f"{name}={value}" for name, value in env.thread_limits().items()]
    usable = f"{threads.available()} of {os.cpu_count()} processors"
    try:
        count = threads.get_num_threads()
    except ValueError as error:
        return str(error)
    kernels = f"kernels run on {count}"
    if threads.libc() is None:
        kernels = "kernels run on 1: no POSIX threads"
    return ", ".join([usable, kernels, *limits])


def _blas() -> str:
    try:
        blas.register()
        return blas.describe()
    except (ImportError, ValueError) as error:
        return f"unusable: {error}"


def _cache() -> str:
    place = cache.location()
    reason = cache.trouble()
    if reason:
        return f"not used, {reason}: {place}"
    held = cache.info()
    return f"{place}, {held.entries} files, {held.bytes / 2**20:.1f} MiB"


def _cuda() -> str:
    """Say whether CUDA could be used, without importing what takes long."""
    found = (vecmath.open_library(name) is not None for name in packages.DRIVERS)
    return packages.describe(driver=any(found))


def report() -> str:
    """Return one line per fact about this installation, and one per switch.

    >>> report().splitlines()[0].split()[0]
    'Python'
    """
    rows = [
        ("Python", f"{platform.python_version()}, {sys.platform} {platform.machine()}"),
        *((package, _version(package)) for package in PACKAGES),
        ("processor", llvm.get_host_cpu_name()),
        ("threads", _threads()),
        ("vector math", vecmath.describe()),
        ("BLAS", _blas()),
        ("cache", _cache()),
        ("CUDA", _cuda()),
    ]
    facts = [f"{name:15} {value}" for name, value in rows]
    return "\n".join([*facts, "", env.describe()])
