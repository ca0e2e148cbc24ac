"""What this machine is: GPU, driver, versions."""

import importlib.metadata
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence

from ..measure import machine
from .records import Emit, emit

PACKAGES = (
    "numpy numba numba-cuda cuda-core cuda-bindings nvidia-cuda-nvcc "
    "nvidia-cuda-nvrtc nvidia-nvjitlink torch triton jax jaxlib cupy-cuda12x "
    "cupy-cuda13x"
).split()
FIELDS = "name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit"


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def smi(fields: str) -> str:
    """Return what nvidia-smi says of the first GPU, or why it says nothing."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "no nvidia-smi"
    command = [tool, f"--query-gpu={fields}", "--format=csv,noheader", "--id=0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    return (done.stdout or done.stderr).strip()


def report(name: str, say: Emit) -> None:
    """Say what the machine is, then what the driver and our device say of it."""
    say(
        {
            "what": "machine",
            "text": machine(),
            "system": platform.platform(),
            "versions": {p: v for p in PACKAGES if (v := version(p))},
            FIELDS: smi(FIELDS),
        }
    )
    from retrograde.runtime.devices import device

    place = device(name)
    say({"what": "device", "name": place.name, "architecture": place.architecture})
    if place.interprets:
        return
    from cuda.bindings import driver
    from cuda.core import Device

    found = Device(0)
    say(
        {
            "what": "driver",
            "name": found.name,
            "version": int(driver.cuDriverGetVersion()[1]),
            "processors": found.properties.multiprocessor_count,
            "l2": found.properties.l2_cache_size,
        }
    )


def main(arguments: Sequence[str]) -> int:
    report(arguments[0], emit)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
