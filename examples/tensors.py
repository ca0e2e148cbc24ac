"""A tour of eager mode: tensors that NumPy's own functions take."""

import numpy as np

import retrograde as rg


def main() -> None:
    x = rg.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], requires_grad=True)
    y = x**2
    row = y[0]  # a view, as in NumPy
    row *= 2.0  # written in place: y changes, and so does its gradient
    np.sum(np.sin(y)).backward()
    print("y:", y.detach().numpy(), "gradient:", x.grad, sep="\n")
    want = np.cos(np.array([[2.0, 8.0, 18.0], [16.0, 25.0, 36.0]]))
    want *= np.array([[4.0, 8.0, 12.0], [8.0, 10.0, 12.0]])
    assert np.allclose(x.grad.numpy(), want)

    with rg.no_grad():  # a step of gradient descent on the leaf itself
        x -= 0.1 * x.grad

    # Gradients of gradients.
    t = rg.tensor(0.5, requires_grad=True)
    (first,) = rg.autograd.grad(t**3, [t], create_graph=True)
    (second,) = rg.autograd.grad(first, [t])
    print("second derivative of t**3 at 0.5:", second.item())
    assert abs(second.item() - 3.0) < 1e-12


if __name__ == "__main__":
    main()
