"""ADBench's LSTM is read and differentiated right."""

from pathlib import Path

import numpy as np

import retrograde as rg
from benchmarks.adbench_lstm import Inputs, check_gradient, objective, read

LAYERS, CHARACTERS, SYMBOLS = 2, 7, 3


def written(folder: Path) -> tuple[Path, Inputs]:
    """Write a small input in ADBench's format."""
    rng = np.random.default_rng(0)
    inputs = Inputs(
        rng.normal(size=(2 * LAYERS, 4 * SYMBOLS)),
        rng.normal(size=(3, SYMBOLS)),
        rng.normal(size=(2 * LAYERS, SYMBOLS)),
        np.eye(SYMBOLS)[rng.integers(0, SYMBOLS, CHARACTERS)],
    )
    blocks = (inputs.gates, inputs.scales, inputs.state, inputs.text)
    texts = [
        "\n".join(" ".join(map(repr, row.tolist())) for row in block)
        for block in blocks
    ]
    head = f"{LAYERS} {CHARACTERS} {SYMBOLS}"
    path = folder / "lstm.txt"
    path.write_text("\n\n".join([head, *texts]) + "\n\n")
    return path, inputs


def test_file_is_read_as_written(tmp_path: Path) -> None:
    path, inputs = written(tmp_path)
    for got, want in zip(read(path).args(), inputs.args(), strict=True):
        np.testing.assert_array_equal(got, want)


def test_gradient_is_that_of_differences(tmp_path: Path) -> None:
    _, inputs = written(tmp_path)
    value, grads = rg.value_and_grad(objective, argnums=(0, 1))(*inputs.args())
    np.testing.assert_allclose(value, objective(*inputs.args()), rtol=1e-12)
    check_gradient(inputs, grads)


def test_uniform_predictions_cost_the_logarithm_of_the_symbols() -> None:
    text = np.eye(SYMBOLS)[[0, 1, 2, 0]]
    gates, state = np.ones((2, 4 * SYMBOLS)), np.zeros((2, SYMBOLS))
    value = objective(gates, np.zeros((3, SYMBOLS)), state, text)
    np.testing.assert_allclose(value, np.log(SYMBOLS) / SYMBOLS, rtol=1e-14)
