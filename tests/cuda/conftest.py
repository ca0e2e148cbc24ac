"""Tests of kernels are skipped where their compiler is not installed.

Others run scripts in a process whose driver, and cuBLAS, are stubs.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from benchmarks.launches import build_stub
from retrograde.runtime.devices import packages

Run = Callable[..., str]

PRELUDE = """
import ctypes, gc, json, os, sys, tempfile, threading
import cuda.core
import numpy as np
from retrograde.ir.errors import DeviceError, DeviceMemoryError
from retrograde.runtime.devices import Code, Fill, Given, Launch, device

stub = ctypes.CDLL("libcuda.so.1")
stub.stub_log.restype = ctypes.c_char_p

def log():
    lines = stub.stub_log().decode().splitlines()
    stub.stub_clear()
    return lines

def code(*kinds, image=b"stub 8 8\\0", static=0):
    return Code("kernel", kinds, "", image, static)

def failing(call, *args):
    try:
        call(*args)
    except DeviceError as error:
        return error
    raise AssertionError("no error")
"""

# A process that has all imported, and forks a child for each script: see `run`.
SERVER = """
def answer(script, variables):
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            os.environ.update(variables)
            try:
                exec(script, globals())
            except BaseException:
                sys.excepthook(*sys.exc_info())
                status = 1
            else:
                status = 0
            sys.stdout.flush()
            os._exit(status)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        return status, output.read().decode()

for line in sys.stdin:
    print(json.dumps(answer(*json.loads(line))), flush=True)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Return what runs a script in a process whose driver is the stub."""
    if not packages.version("cuda-core"):
        pytest.skip("needs cuda-core: pip install 'retrograde[test-cuda]'")
    folder = tmp_path_factory.mktemp("stub")
    if not build_stub(folder):
        pytest.skip("the stub of the driver needs gcc and Linux")

    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    command = [sys.executable, "-W", "error", "-c", PRELUDE + SERVER]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env=environment
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        stdin, stdout = server.stdin, server.stdout

        def run_script(script: str, **variables: str) -> str:
            stdin.write(json.dumps((script, variables)) + "\n")
            stdin.flush()
            status, output = json.loads(stdout.readline())
            assert status == 0, output
            return str(output)

        yield run_script


def installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if installed("numba-cuda"):
        return
    reason = "needs numba-cuda: pip install 'retrograde[test-cuda]'"
    for item in items:
        if item.get_closest_marker("cuda_emulated"):
            item.add_marker(pytest.mark.skip(reason))
