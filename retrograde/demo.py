"""Five programs that write in place and through views, compared and trained.

Each is plain NumPy. `python -m retrograde demo` runs each one in NumPy, in eager mode
and compiled, and compares values, aliasing and gradients.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import as_file, files
from typing import Any

import numpy as np
import numpy.typing as npt

import retrograde as rg

from .comparison import Comparison
from .explain import explain as show

Array = npt.NDArray[Any]

ACCURACY = 0.97  # that training on the digits has to reach


def write_through_view(x: Array) -> Any:
    """Double the first row of x**2 through a view."""
    y = x**2
    v = y[0]
    v *= 2
    return y


def overlapping_views(x: Array) -> Any:
    """Write through one view and read through another that overlaps it."""
    y = np.sin(x)
    v1 = y[0, :]
    v2 = y[:, 0]
    v1 *= 2
    return np.sum(v1 * v2)


def heat(u: Array, k: float) -> Any:
    """Let heat spread through a plate, updating it in place."""
    for _ in range(4):
        u[1:-1, 1:-1] += k * (
            u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
        )
    return np.sum(u**2)


def softmax_loss(params: Array, images: Array, labels: Array) -> Any:
    """Return the loss of softmax regression; weights and biases are views of params."""
    pixels = images.shape[1]
    weights = params[: 10 * pixels].reshape(pixels, 10)
    biases = params[10 * pixels :]
    z = images @ weights
    z += biases
    z -= z.max(axis=1, keepdims=True)
    right = z[np.arange(labels.shape[0]), labels]
    np.exp(z, out=z)
    loss = np.mean(np.log(z.sum(axis=1)) - right)
    return loss + 1e-4 * np.sum(weights**2)


def network_loss(layers: dict[str, Array], images: Array, labels: Array) -> Any:
    """Return the training loss of a network with one hidden layer."""
    hidden = images @ layers["w1"]
    hidden += layers["b1"]
    np.tanh(hidden, out=hidden)
    z = hidden @ layers["w2"]
    z += layers["b2"]
    z -= z.max(axis=1, keepdims=True)
    right = z[np.arange(labels.shape[0]), labels]
    return np.mean(np.log(np.exp(z).sum(axis=1)) - right)


def digits() -> tuple[Array, Array]:
    """Load the handwritten digits: images with pixels in 0..1, and labels.

    >>> images, labels = digits()
    >>> images.shape, labels.shape
    ((1797, 64), (1797,))
    """
    with (
        as_file(files("retrograde") / "data" / "digits.npz") as path,
        np.load(path) as archive,
    ):
        return archive["images"] / 16.0, archive["labels"].astype(np.int64)


@dataclass(frozen=True, slots=True)
class Example:
    """A program of the demo, and its arguments for a quick or a full run."""

    function: Callable[..., Any]
    arguments: Callable[[bool], tuple[Any, ...]]
    argnums: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name that the command line knows."""
        return self.function.__name__

    def compare(self, compiled: Callable[..., Any], *, quick: bool) -> Comparison:
        """Compare all modes on this program's arguments."""
        return rg.compare(compiled, *self.arguments(quick), argnums=self.argnums)


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _square(quick: bool) -> tuple[Any, ...]:
    size = 30 if quick else 300
    return (_rng().standard_normal((size, size)),)


def _plate(quick: bool) -> tuple[Any, ...]:
    size = 50 if quick else 400
    return _rng().uniform(size=(size, size)), 0.2


def _digits(quick: bool) -> tuple[Array, Array]:
    images, labels = digits()
    return (images[:300], labels[:300]) if quick else (images, labels)


def _softmax(quick: bool) -> tuple[Any, ...]:
    return 0.1 * _rng().standard_normal(650), *_digits(quick)


def _network(quick: bool) -> tuple[Any, ...]:
    rng = _rng()
    layers = {
        "w1": rng.standard_normal((64, 32)) / 8,
        "b1": 0.1 * rng.standard_normal(32),
        "w2": rng.standard_normal((32, 10)) / 6,
        "b2": 0.1 * rng.standard_normal(10),
    }
    return layers, *_digits(quick)


EXAMPLES = (
    Example(write_through_view, _square, (0,)),
    Example(overlapping_views, _square, (0,)),
    Example(heat, _plate, (0, 1)),
    Example(softmax_loss, _softmax, (0,)),
    Example(network_loss, _network, (0,)),
)


@dataclass(frozen=True, slots=True)
class Training:
    """How training on the digits went."""

    iterations: int
    loss: float
    accuracy: float
    seconds: float

    @property
    def ok(self) -> bool:
        """Tell whether the accuracy is what it has to be."""
        return self.accuracy >= ACCURACY

    def __str__(self) -> str:
        return (
            f"scipy.optimize L-BFGS-B on the compiled value and gradient: "
            f"{self.iterations} iterations in {self.seconds:.2g} s, "
            f"loss {self.loss:.4f}, {self.accuracy:.1%} of the training images right"
        )


def train(loss: Callable[..., Any], *, quick: bool = False) -> Training:
    """Minimise the softmax regression's loss with SciPy and its compiled gradient."""
    from scipy.optimize import minimize  # imported only when used: it takes 0.2 s

    images, labels = _digits(quick)
    start = time.perf_counter()
    found = minimize(
        rg.value_and_grad(loss),
        np.zeros(650),
        args=(images, labels),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 60},
    )
    seconds = time.perf_counter() - start
    scores = images @ found.x[:640].reshape(64, 10) + found.x[640:]
    accuracy = float(np.mean(scores.argmax(axis=1) == labels))
    return Training(int(found.nit), float(found.fun), accuracy, seconds)


def run(*, quick: bool = False, explain: str | None = None) -> bool:
    """Run the demo, print what it found, and return whether everything is right."""
    from rich.console import Console

    console = Console(highlight=False)
    started = time.perf_counter()
    right = True
    for example, compiled in _compiled():
        summary = (example.function.__doc__ or "").splitlines()[0]
        console.print(f"[bold]{example.name}[/bold]  {summary}", soft_wrap=True)
        comparison = example.compare(compiled, quick=quick)
        right = right and comparison.ok
        print(_indent(str(comparison)))
        if example.function is softmax_loss:
            training = train(compiled, quick=quick)
            right = right and training.ok
            print(_indent(f"{training}{'' if training.ok else ': too few'}"))
        if example.name == explain:
            print(_indent(show(compiled, example.arguments(quick))))
        print()
    verdict = "[green]everything agrees[/green]" if right else "[red]failed[/red]"
    console.print(f"{verdict} ({time.perf_counter() - started:.1f} s)")
    return right


def _compiled() -> Iterator[tuple[Example, Any]]:
    for example in EXAMPLES:
        yield example, rg.compile(example.function)


def _indent(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())
