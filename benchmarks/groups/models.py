"""Models: losses of networks, likelihoods and simulations, with their gradients."""

import math
from typing import Any

import numpy as np

from ..case import Args, Array, Case

SMALL = 8  # below this size, which tests take, other sizes are small, too


def mlp(x: Array, y: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Any:
    h = np.tanh(x @ w1 + b1)
    return np.mean((h @ w2 + b2 - y) ** 2)


def mlp_args(rng: np.random.Generator, n: int) -> Args:
    """Return a batch of n, of 64 features, for 256 hidden units and 10 results."""
    d, k = (64, 256) if n >= SMALL else (3, 4)
    shapes = ((n, d), (n, 10), (d, k), (k,), (k, 10), (10,))
    x, y, w1, b1, w2, b2 = (rng.standard_normal(shape) for shape in shapes)
    return x, y, w1 / 8, b1, w2 / 16, b2


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def lstm_cell(x: Array, h: Array, c: Array, w: Array, u: Array, b: Array) -> Any:
    n = h.shape[1]
    gates = x @ w + h @ u + b
    keep, take = sigmoid(gates[:, :n]), sigmoid(gates[:, n : 2 * n])
    show, change = sigmoid(gates[:, 2 * n : 3 * n]), np.tanh(gates[:, 3 * n :])
    state = keep * c + take * change
    return np.sum((show * np.tanh(state)) ** 2)


def lstm_args(rng: np.random.Generator, n: int) -> Args:
    """Return a batch of n, of 64 features, for 128 units."""
    d, k = (64, 128) if n >= SMALL else (3, 2)
    shapes = ((n, d), (n, k), (n, k), (d, 4 * k), (k, 4 * k), (4 * k,))
    x, h, c, w, u, b = (rng.standard_normal(shape) for shape in shapes)
    return x, h, c, w / 8, u / 12, b


def attention(x: Array, wq: Array, wk: Array, wv: Array, wo: Array) -> Any:
    q, k, v = x @ wq, x @ wk, x @ wv
    scores = q @ k.T / math.sqrt(k.shape[1])
    e = np.exp(scores - np.max(scores, axis=1, keepdims=True))
    mixed = (e / np.sum(e, axis=1, keepdims=True)) @ v
    return np.mean((x + mixed @ wo) ** 2)


def attention_args(rng: np.random.Generator, n: int) -> Args:
    """Return a sequence of n, of 64 features, for one head."""
    d = 64 if n >= SMALL else 3
    x, *weights = (rng.standard_normal(s) for s in ((n, d), *4 * ((d, d),)))
    return (x, *(w / 8 for w in weights))


def convolution(images: Array, kernel: Array) -> Any:
    """Convolve with 3 x 3 kernels: patches are copied into the rows of a matrix."""
    n, height, width, channels = images.shape
    h, w = height - 2, width - 2
    patches = np.empty((n, h, w, 9, channels), images.dtype)
    for i in range(3):
        for j in range(3):
            patches[:, :, :, 3 * i + j] = images[:, i : i + h, j : j + w]
    rows = np.reshape(patches, (n * h * w, 9 * channels))
    return np.mean(np.maximum(rows @ kernel, 0) ** 2)


def convolution_pure(images: Array, kernel: Array) -> Any:
    n, height, width, channels = images.shape
    h, w = height - 2, width - 2
    parts = [images[:, i : i + h, j : j + w] for i in range(3) for j in range(3)]
    rows = np.reshape(np.stack(parts, 3), (n * h * w, 9 * channels))
    return np.mean(np.maximum(rows @ kernel, 0) ** 2)


def convolution_args(rng: np.random.Generator, n: int) -> Args:
    """Return n images of 28 x 28 and 8 channels, for 16 results."""
    side, k = (28, 16) if n > 1 else (5, 2)
    return rng.standard_normal((n, side, side, 8)), rng.standard_normal((72, k)) / 8


def gmm(alphas: Array, means: Array, icf: Array, x: Array) -> Any:
    """Return ADBench's log-likelihood of a Gaussian mixture, with a Wishart prior.

    `icf` holds, per component, logarithms of the diagonal of a triangular matrix and
    its entries below, column by column.
    """
    k, d = means.shape
    log_diagonal = icf[:, :d]
    diagonal = np.exp(log_diagonal)
    lower = np.zeros((k, d, d), icf.dtype)
    start = d
    for j in range(d - 1):
        lower[:, j + 1 :, j] = icf[:, start : start + d - 1 - j]
        start += d - 1 - j
    return likelihood(alphas, means, log_diagonal, diagonal, lower, x) + prior(
        log_diagonal, diagonal, icf[:, d:], k
    )


def likelihood(
    alphas: Array,
    means: Array,
    log_diagonal: Array,
    scale: Array,
    lower: Array,
    x: Array,
) -> Any:
    n, d = x.shape
    away = x[:, None, :] - means[None, :, :]
    turned = np.einsum("kij,nkj->nki", lower, away) + scale * away
    terms = alphas + np.sum(log_diagonal, axis=1) - 0.5 * np.sum(turned**2, axis=2)
    constant = -n * d * 0.5 * math.log(2 * math.pi)
    m = np.max(terms, axis=1)
    each = m + np.log(np.sum(np.exp(terms - m[:, None]), axis=1))
    largest = np.max(alphas)
    every = largest + np.log(np.sum(np.exp(alphas - largest)))
    return constant + np.sum(each) - n * every


def prior(log_diagonal: Array, diagonal: Array, below: Array, k: int) -> Any:
    d = diagonal.shape[1]
    m, gamma = 0, 1.0
    n = d + m + 1
    constant = n * d * (math.log(gamma) - 0.5 * math.log(2)) - 0.5 * d * (d - 1) / 2 * (
        math.log(math.pi)
    )
    constant -= sum(math.lgamma(0.5 * (n - j)) for j in range(d))
    squares = np.sum(diagonal**2) + np.sum(below**2)
    return 0.5 * gamma**2 * squares - m * np.sum(log_diagonal) - k * constant


def gmm_pure(alphas: Array, means: Array, icf: Array, x: Array) -> Any:
    d = x.shape[1]
    k = means.shape[0]
    log_diagonal = icf[:, :d]
    diagonal = np.exp(log_diagonal)
    columns = []
    start = d
    for j in range(d):
        below = icf[:, start : start + d - 1 - j]
        columns.append(np.concatenate([np.zeros_like(icf[:, : j + 1]), below], axis=1))
        start += d - 1 - j
    lower = np.stack(columns, 2)
    return likelihood(alphas, means, log_diagonal, diagonal, lower, x) + prior(
        log_diagonal, diagonal, icf[:, d:], k
    )


def gmm_args(rng: np.random.Generator, n: int) -> Args:
    """Return n points in 20 dimensions, for 25 components."""
    d, k = (20, 25) if n >= SMALL else (3, 2)
    icf = 0.3 * rng.standard_normal((k, d * (d + 1) // 2))
    x = rng.standard_normal((n, d))
    return rng.standard_normal(k), rng.standard_normal((k, d)), icf, x


def bundle_adjustment(
    cameras: Array, points: Array, weights: Array, seen: Array, at: Array, which: Array
) -> Any:
    """Return the squared errors of ADBench's bundle adjustment.

    A camera: rotation vector, centre, focal length, principal point, two radial
    distortions. Observation i is of point which[i] by camera at[i].
    """
    camera, point = cameras[at], points[which]
    error = weights[:, None] * (projected(camera, point) - seen)
    return np.sum(error**2) + np.sum((1 - weights**2) ** 2)


def projected(camera: Array, point: Array) -> Array:
    moved = rotated(camera[:, :3], point - camera[:, 3:6])
    flat = moved[:, :2] / moved[:, 2:]
    r2 = np.sum(flat**2, axis=1)
    radial = 1 + camera[:, 9] * r2 + camera[:, 10] * r2**2
    seen: Array = flat * (radial * camera[:, 6])[:, None] + camera[:, 7:9]
    return seen


def rotated(axis: Array, x: Array) -> Array:
    """Turn vectors about axes whose lengths are angles, by Rodrigues' formula."""
    angle = np.sqrt(np.sum(axis**2, axis=1))[:, None]
    unit = axis / angle
    across = np.stack(
        [
            unit[:, 1] * x[:, 2] - unit[:, 2] * x[:, 1],
            unit[:, 2] * x[:, 0] - unit[:, 0] * x[:, 2],
            unit[:, 0] * x[:, 1] - unit[:, 1] * x[:, 0],
        ],
        1,
    )
    along = np.sum(unit * x, axis=1)[:, None] * (1 - np.cos(angle))
    turned: Array = x * np.cos(angle) + across * np.sin(angle) + unit * along
    return turned


def bundle_args(rng: np.random.Generator, n: int) -> Args:
    """Return n observations by 50 cameras, of a tenth as many points."""
    count = 50 if n >= 100 else 3
    cameras = rng.uniform(0.1, 0.5, (count, 11))
    cameras[:, 5] -= 5
    points = rng.standard_normal((max(n // 10, 1), 3))
    at, which = rng.integers(0, count, n), rng.integers(0, len(points), n)
    return (
        cameras,
        points,
        rng.uniform(0.5, 1, n),
        rng.standard_normal((n, 2)),
        at,
        which,
    )


def calls_and_puts(
    spot: Array, strike: Array, vol: Array, time: Array, rate: Array
) -> Any:
    """Price options by Black and Scholes, with the normal distribution by tanh."""
    root = vol * np.sqrt(time)
    d1 = (np.log(spot / strike) + (rate + 0.5 * vol**2) * time) / root
    cash = strike * np.exp(-rate * time)
    call = spot * normal(d1) - cash * normal(d1 - root)
    return np.sum(call * call + (call - spot + cash) ** 2)


def normal(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def option_args(rng: np.random.Generator, n: int) -> Args:
    spot, strike = rng.uniform(80, 120, (2, n))
    vol, time, rate = rng.uniform(0.1, 0.5, (3, n))
    return spot, strike, vol, time, rate


def gravity(x: Array, mass: Array) -> Any:
    """Return the energy of n bodies and the squares of their accelerations."""
    away = x[:, None, :] - x[None, :, :]
    r2 = np.sum(away**2, axis=2) + 0.01
    weight = mass[None, :] / (r2 * np.sqrt(r2))
    pull = np.sum(weight[:, :, None] * away, axis=1)
    return np.sum(pull**2) - np.sum(mass[:, None] * mass[None, :] / np.sqrt(r2))


def gravity_args(rng: np.random.Generator, n: int) -> Args:
    return rng.standard_normal((n, 3)), rng.uniform(0.5, 1.5, n)


def rosenbrock(x: Array) -> Any:
    return np.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def rosenbrock_args(rng: np.random.Generator, n: int) -> Args:
    return (rng.standard_normal(n),)


def logistic_regression(x: Array, y: Array, w: Array, b: Array) -> Any:
    z = x @ w + b
    return np.mean(np.logaddexp(0, z) - y * z) + 0.01 * np.sum(w * w)


def logistic_torch(x: Array, y: Array, w: Array, b: Array) -> Any:
    z = x @ w + b
    loss = np.logaddexp(np.zeros_like(z), z) - y * z
    return np.mean(loss) + 0.01 * np.sum(w * w)


def logistic_args(rng: np.random.Generator, n: int) -> Args:
    """Return n rows of 100 features."""
    d = 100 if n >= SMALL else 3
    x, w = rng.standard_normal((n, d)), rng.standard_normal(d) / 10
    return x, rng.uniform(0, 1, n), w, rng.standard_normal(1)


def gaussian_process(x: Array, y: Array, log_scales: Array, log_noise: Array) -> Any:
    """Return the marginal likelihood under a squared exponential kernel."""
    n = x.shape[0]
    scaled = x / np.exp(log_scales)
    norms = np.sum(scaled**2, axis=1)
    gaps = norms[:, None] + norms[None, :] - 2 * (scaled @ scaled.T)
    noise = (np.exp(2 * log_noise) + 1e-3) * np.eye(n, dtype=x.dtype)
    factor = np.linalg.cholesky(np.exp(-0.5 * gaps) + noise)
    left = np.linalg.solve(factor, y)
    return 0.5 * np.sum(left**2) + np.sum(np.log(np.diagonal(factor)))


def process_args(rng: np.random.Generator, n: int) -> Args:
    """Return n points in 5 dimensions."""
    x, y = rng.standard_normal((n, 5)), rng.standard_normal(n)
    return x, y, np.zeros(5), np.full(1, -1.0)


DOUBLE = ("float64",)
CASES = (
    Case(mlp, mlp_args, (64, 1024), tiny=3),
    Case(lstm_cell, lstm_args, (16, 256), tiny=2),
    Case(attention, attention_args, (64, 512), tiny=3),
    Case(
        convolution,
        convolution_args,
        (8, 64),
        tiny=1,
        pure=convolution_pure,
    ),
    Case(gmm, gmm_args, (1000,), DOUBLE, tiny=4, pure=gmm_pure),
    Case(bundle_adjustment, bundle_args, (1000, 50_000), DOUBLE, tiny=20),
    Case(calls_and_puts, option_args, (1000, 1_000_000), DOUBLE),
    Case(gravity, gravity_args, (50, 500), DOUBLE, tiny=5),
    Case(rosenbrock, rosenbrock_args, (1000, 1_000_000), DOUBLE),
    Case(
        logistic_regression,
        logistic_args,
        (1000, 50_000),
        tiny=5,
        torch=logistic_torch,
    ),
    Case(gaussian_process, process_args, (100, 500), DOUBLE, tiny=6),
)
