"""The LSTM of the benchmark ADBench: `python -m benchmarks.adbench_lstm FILE`.

    python -m benchmarks.adbench_lstm FILE [--steps N] [--seconds S]

FILE is one of ADBench's inputs, such as lstm_l2_c1024.txt: a line with the numbers of
layers, characters and symbols, then blocks of rows: two per layer with the weights and
biases of four gates, three of the input's scale, the output's scale and its bias, two
per layer with the state to start from, and the text, one row per character. Value and
gradient are checked before they are timed, with one thread.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import retrograde as rg
from retrograde.differences import slope

from .measure import MeasurementError, cpu_seconds, machine, medians, run_child
from .programs import Array

SAME = 1e-12  # largest relative error of the value
RIGHT = 1e-7  # largest relative error of a derivative along a direction


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a file holds: arrays of rows with one entry per symbol."""

    gates: Array  # (2 layers, 4 symbols): weights and biases in turn
    scales: Array  # (3, symbols)
    state: Array  # (2 layers, symbols): outputs and cells in turn
    text: Array  # (characters, symbols)

    def args(self) -> tuple[Array, Array, Array, Array]:
        return self.gates, self.scales, self.state.copy(), self.text


def read(path: Path) -> Inputs:
    """Read one of ADBench's inputs."""
    head, *rows = [line for line in path.read_text().splitlines() if line.strip()]
    layers, characters, symbols = map(int, head.split())
    start = 0

    def block(count: int, width: int) -> Array:
        nonlocal start
        part = rows[start : start + count]
        start += count
        values = np.array([line.split() for line in part], np.float64)
        if values.shape != (count, width):
            raise ValueError(f"{path}: expected {count} rows of {width} numbers")
        return values

    return Inputs(
        block(2 * layers, 4 * symbols),
        block(3, symbols),
        block(2 * layers, symbols),
        block(characters, symbols),
    )


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def objective(gates: Array, scales: Array, state: Array, text: Array) -> Any:
    """Return the negative mean log-likelihood of each next character.

    The gates act on each symbol by itself; `state` is changed.
    """
    length, n = text.shape
    total = 0.0
    for t in range(length - 1):
        x = text[t] * scales[0]
        for i in range(0, state.shape[0], 2):
            weight, bias = gates[i], gates[i + 1]
            keep = sigmoid(x * weight[:n] + bias[:n])
            take = sigmoid(state[i] * weight[n : 2 * n] + bias[n : 2 * n])
            show = sigmoid(x * weight[2 * n : 3 * n] + bias[2 * n : 3 * n])
            change = np.tanh(state[i] * weight[3 * n :] + bias[3 * n :])
            state[i + 1] = state[i + 1] * keep + take * change
            state[i] = show * np.tanh(state[i + 1])
            x = state[i]
        y = x * scales[1] + scales[2]
        total = total + np.sum(text[t + 1] * (y - np.log(np.sum(np.exp(y)))))
    return -total / ((length - 1) * n)


def check_gradient(inputs: Inputs, grads: tuple[Array, ...]) -> None:
    """Hold gradients against differences of NumPy's values."""
    rng = np.random.default_rng(0)
    for k, g in enumerate(grads):
        direction = rng.choice([-1.0, 1.0], g.shape)

        def along(step: float, k: int = k, direction: Array = direction) -> float:
            args = list(inputs.args())
            args[k] = args[k] + step * direction
            return float(objective(*args))

        known = slope(along, 1.0, 2.0**-52)
        got = float(np.sum(g * direction))
        allowed = RIGHT * max(float(np.sum(np.abs(g))), 1e-3) + 2 * known.doubt
        if known.problem or not abs(got - known.value) <= allowed:
            raise MeasurementError(
                f"slope {got:.9g} in argument {k}, by differences {known.value:.9g} "
                f"{known.problem}"
            )


def measure(path: Path, steps: int | None, seconds: float) -> dict[str, float]:
    """Check and time value and gradient, in the parameters, in this process."""
    inputs = read(path)
    if steps is not None:
        inputs = Inputs(
            inputs.gates, inputs.scales, inputs.state, inputs.text[: steps + 1]
        )
    forward = rg.compile(objective)
    gradient = rg.value_and_grad(forward, argnums=(0, 1))
    start = cpu_seconds()
    value, grads = gradient(*inputs.args())
    first = cpu_seconds() - start
    known = objective(*inputs.args())
    for found in (value, forward(*inputs.args())):
        if not abs(found - known) <= SAME * abs(known):
            raise MeasurementError(f"the value is {found!r}, NumPy's is {known!r}")
    check_gradient(inputs, grads)
    calls = (objective, forward, gradient)
    numpy_time, forward_time, gradient_time = medians(
        [lambda f=f: partial(f, *inputs.args()) for f in calls],  # type: ignore[misc]
        seconds,
    )
    return {
        "value": float(known),
        "numpy": numpy_time,
        "forward": forward_time,
        "gradient": gradient_time,
        "cold": first - gradient_time,
    }


def main() -> int:
    """Print the figures and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--steps", type=int, help="characters to read; default: all")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(given.file, given.steps, given.seconds)))
        return 0
    arguments = ["benchmarks.adbench_lstm", str(given.file), "--child"]
    arguments.append(f"--seconds={given.seconds}")
    if given.steps is not None:
        arguments.append(f"--steps={given.steps}")
    print(machine())
    try:
        t = run_child(arguments, given.timeout)
    except MeasurementError as error:
        print(f"failed: {error}")
        return 1
    print(f"objective          {t['value']:.15g}")
    print(f"NumPy              {t['numpy'] * 1e3:.3f} ms")
    print(f"compiled objective {t['forward'] * 1e3:.3f} ms")
    print(f"compiled gradient  {t['gradient'] * 1e3:.3f} ms")
    print(f"gradient/objective {t['gradient'] / t['forward']:.2f}")
    print(f"compilation        {t['cold']:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
