"""Images and sequences: recursive filters, convolution, LSTM, Kalman filter."""

import numpy as np

from .program import Args, Array, Program, Rng


def deriche(alpha: float, image: Array, out: Array, back: Array) -> None:
    """Smooth an image by recursive filters: right, left, then down, up."""
    w, h = image.shape
    e = np.exp(-alpha)
    k = (1.0 - e) ** 2 / (1.0 + 2.0 * alpha * e - e * e)
    ahead = k * e * (alpha + 1.0)
    behind = k * e * (alpha - 1.0)
    for i in range(w):
        x1 = y1 = y2 = 0.0
        for j in range(h):
            out[i, j] = k * image[i, j] + behind * x1 + 2.0 * e * y1 - e * e * y2
            x1 = image[i, j]
            y2 = y1
            y1 = out[i, j]
        x1 = x2 = y1 = y2 = 0.0
        for j in range(h - 1, -1, -1):
            back[i, j] = ahead * x1 - k * e * e * x2 + 2.0 * e * y1 - e * e * y2
            x2 = x1
            x1 = image[i, j]
            y2 = y1
            y1 = back[i, j]
    image[:] = out + back
    for j in range(h):
        x1 = y1 = y2 = 0.0
        for i in range(w):
            out[i, j] = k * image[i, j] + behind * x1 + 2.0 * e * y1 - e * e * y2
            x1 = image[i, j]
            y2 = y1
            y1 = out[i, j]
        x1 = x2 = y1 = y2 = 0.0
        for i in range(w - 1, -1, -1):
            back[i, j] = ahead * x1 - k * e * e * x2 + 2.0 * e * y1 - e * e * y2
            x2 = x1
            x1 = image[i, j]
            y2 = y1
            y1 = back[i, j]
    out += back


def deriche_inputs(rng: Rng, w: int, h: int) -> Args:
    return 0.25, rng.uniform(size=(w, h)), np.zeros((w, h)), np.zeros((w, h))


def conv2d(image: Array, kernel: Array, out: Array) -> None:
    """Correlate the channels of an image with kernels, pixel after pixel."""
    k = kernel.shape[2]
    for i in range(out.shape[1]):
        for j in range(out.shape[2]):
            patch = image[:, i : i + k, j : j + k]
            out[:, i, j] = np.sum(kernel * patch, axis=(1, 2, 3))


def conv2d_inputs(rng: Rng, channels: int, outs: int, n: int, k: int) -> Args:
    image = rng.normal(size=(channels, n, n))
    kernel = rng.normal(size=(outs, channels, k, k))
    return image, kernel, np.zeros((outs, n - k + 1, n - k + 1))


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def lstm(
    xs: Array, w: Array, u: Array, b: Array, h: Array, c: Array, out: Array
) -> None:
    """Run an LSTM over a sequence; h and c are its state before and after."""
    n = h.shape[0]
    for t in range(xs.shape[0]):
        gates = w @ xs[t] + u @ h + b
        keep = sigmoid(gates[:n])
        take = sigmoid(gates[n : 2 * n])
        show = sigmoid(gates[2 * n : 3 * n])
        c[:] = keep * c + take * np.tanh(gates[3 * n :])
        h[:] = show * np.tanh(c)
        out[t] = h


def lstm_inputs(rng: Rng, steps: int, width: int, n: int) -> Args:
    scale = 1.0 / np.sqrt(n)
    return (
        rng.normal(size=(steps, width)),
        scale * rng.normal(size=(4 * n, width)),
        scale * rng.normal(size=(4 * n, n)),
        rng.normal(size=4 * n),
        rng.normal(size=n),
        rng.normal(size=n),
        np.zeros((steps, n)),
    )


def kalman(
    zs: Array, f: Array, q: Array, h: Array, noise: float, x: Array, p: Array
) -> float:
    """Filter scalar observations zs = h x and return their log-likelihood.

    The state moves by f with covariance q; x and p are its mean and covariance.
    """
    likelihood = 0.0
    for t in range(zs.shape[0]):
        x[:] = f @ x
        p[:] = f @ p @ f.T + q
        ph = p @ h
        s = h @ ph + noise
        gap = zs[t] - h @ x
        x += ph * (gap / s)
        p -= np.outer(ph, ph) / s
        likelihood -= 0.5 * (np.log(2.0 * np.pi * s) + gap * gap / s)
    return likelihood


def kalman_inputs(rng: Rng, steps: int, n: int) -> Args:
    f = 0.9 * np.eye(n) + 0.1 * rng.normal(size=(n, n)) / np.sqrt(n)
    q = 0.1 * np.eye(n) + 0.02 * np.ones((n, n))
    x, h = rng.normal(size=(2, n))
    return rng.normal(size=steps), f, q, h, 0.5, x, np.eye(n)


PROGRAMS = (
    Program(deriche, deriche_inputs, (1, 2), ((3, 4), (5, 5), (7, 6)), (80, 60)),
    Program(
        conv2d,
        conv2d_inputs,
        (2,),
        ((1, 2, 4, 2), (2, 3, 5, 3), (3, 2, 7, 3)),
        (8, 16, 64, 3),
    ),
    Program(
        lstm, lstm_inputs, (4, 5, 6), ((5, 2, 3), (6, 3, 2), (8, 4, 5)), (500, 32, 64)
    ),
    Program(kalman, kalman_inputs, (5, 6), ((5, 2), (6, 3), (9, 4)), (1000, 6)),
)
