"""Train softmax regression on handwritten digits with SciPy and a compiled gradient."""

import numpy as np
from scipy.optimize import minimize

import retrograde as rg
from retrograde.demo import digits


@rg.compile
def loss(params, images, labels):
    weights = params[:640].reshape(64, 10)  # views: nothing is copied
    z = images @ weights
    z += params[640:]
    z -= z.max(axis=1, keepdims=True)
    right = z[np.arange(labels.shape[0]), labels]
    np.exp(z, out=z)
    return np.mean(np.log(z.sum(axis=1)) - right) + 1e-4 * np.sum(weights**2)


def main() -> None:
    images, labels = digits()
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[:1400], order[1400:]
    found = minimize(
        rg.value_and_grad(loss),
        np.zeros(650),
        args=(images[train], labels[train]),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 60},
    )
    scores = images @ found.x[:640].reshape(64, 10) + found.x[640:]
    right = scores.argmax(axis=1) == labels
    print(f"loss {found.fun:.4f} after {found.nit} iterations")
    print(
        f"right: {right[train].mean():.1%} of train, {right[test].mean():.1%} of test"
    )
    assert right[test].mean() > 0.9


if __name__ == "__main__":
    main()
