"""backward, grad, accumulation into `.grad`, retain_grad and hooks."""

from typing import Any

import numpy as np
import pytest

from retrograde.ir.errors import GradientError
from retrograde.tracer.autograd import backward
from retrograde.tracer.autograd import grad as grad_of
from retrograde.tracer.tensor import Tensor, tensor

TWICE = "^Trying to backward through the graph a second time"


def leaf(*values: float) -> Tensor:
    return tensor(np.array(values, float), requires_grad=True)


def plain(*values: float) -> Tensor:
    return tensor(np.array(values, float))


def grad(t: Tensor) -> Any:
    assert t.grad is not None
    return t.grad.tolist()


def first(result: tuple[Tensor | None, ...]) -> Any:
    assert result[0] is not None
    return result[0].tolist()


def test_a_second_backward_needs_the_saved_values() -> None:
    a = leaf(1, 1)
    y = (a * a).sum()
    y.backward()
    with pytest.raises(GradientError, match=TWICE):
        y.backward()


def test_a_second_backward_works_where_nothing_was_saved() -> None:
    a = leaf(1, 1)
    y = (a + 1).sum()
    y.backward()
    y.backward()
    assert grad(a) == [2, 2]


def test_gradients_accumulate_in_place_unless_recorded() -> None:
    a = leaf(1, 1)
    y = (a * a).sum()
    y.backward(retain_graph=True)
    g = a.grad
    y.backward(retain_graph=True)
    assert a.grad is g
    y.backward(create_graph=True)
    assert a.grad is not g
    assert grad(a) == [6, 6]


def test_gradients_never_alias_what_the_user_holds() -> None:
    a, g = leaf(1, 1), np.array([2.0, 2.0])
    (a * 1).backward(g)
    a.grad.add_(1)  # type: ignore[union-attr]
    assert g.tolist() == [2, 2]
    b, one = leaf(1, 1), plain(1, 1)
    g1, g2 = grad_of(a + b, [a, b], one)
    assert g1 is not None
    assert g2 is not None
    g1.add_(1)
    assert (g2.tolist(), one.tolist()) == ([1, 1], [1, 1])
    (x,) = grad_of(a.sum(), a)
    assert x is not None
    assert x.numpy().flags.writeable


def test_grad_of_what_was_not_used() -> None:
    a, b = leaf(1, 1), leaf(1, 1)
    with pytest.raises(GradientError, match="at index 0 appears to not have been used"):
        grad_of(a.sum(), b)
    assert grad_of(a.sum(), b, allow_unused=True) == (None,)
    assert first(grad_of(a.sum(), b, materialize_grads=True)) == [0, 0]
    with pytest.raises(GradientError, match=r"^One of the differentiated Tensors does"):
        grad_of((a * plain(1, 1)).sum(), plain(1, 1))


def test_implicit_gradients_are_for_scalars() -> None:
    with pytest.raises(GradientError, match=r"^grad can be implicitly created only"):
        (leaf(1, 1) * 2).backward()
    with pytest.raises(GradientError, match=r"^element 0 of tensors does not require"):
        plain(1, 1).sum().backward()
    with pytest.raises(ValueError, match="Mismatch in shape"):
        (leaf(1, 1) * 2).backward(np.ones(3))


def test_grad_goes_to_the_new_version_of_a_tensor() -> None:
    a = leaf(1, 1)
    b = a * 2
    c = b + 1
    b.mul_(2)
    assert grad_of(c.sum(), b, allow_unused=True) == (None,)


def test_second_derivatives_through_writes() -> None:
    a = leaf(2, 3)
    b = a * a
    b.mul_(a)
    (g,) = grad_of(b.sum(), a, create_graph=True)
    assert g is not None
    assert first(grad_of(g.sum(), a)) == [12, 18]
    b = a * a
    b[:1].mul_(a[1:])
    (g,) = grad_of(b.sum(), a, create_graph=True)
    assert g is not None
    assert first(grad_of(g.sum(), a)) == [10, 6]


def test_third_derivative() -> None:
    x = tensor(2.0, requires_grad=True)
    y = x**4 + np.sin(x)
    for _ in range(3):
        (y,) = grad_of(y, x, create_graph=True)  # type: ignore[assignment]
    np.testing.assert_allclose(y.item(), 48 - np.cos(2.0))


def test_grad_runs_only_what_leads_to_its_inputs() -> None:
    a, b = leaf(1, 1), leaf(2, 2)
    c = b * 1
    spoiled = c * c
    c.add_(1)
    y = (a * 3 + spoiled).sum()
    assert first(grad_of(y, a)) == [3, 3]


def test_backward_into_chosen_inputs() -> None:
    a, b = leaf(1, 1), leaf(2, 2)
    c = a * b
    backward(c.sum(), inputs=[a, c])
    assert (grad(a), grad(c), b.grad) == ([2, 2], [1, 1], None)


def test_several_outputs_at_once() -> None:
    a = leaf(1, 2)
    y = a * a
    backward([y, a * 3], [np.ones(2), np.array([1.0, 0.0])])
    assert grad(a) == [5, 4]


def test_grad_of_an_intermediate() -> None:
    a = leaf(1, 2)
    b = a * 3
    c = b * b
    gb, ga = grad_of(c.sum(), [b, a])
    assert gb is not None
    assert ga is not None
    assert (gb.tolist(), ga.tolist()) == ([6, 12], [18, 36])
    assert a.grad is None


def test_retain_grad_follows_the_tensor() -> None:
    a = leaf(1, 1)
    b = a * 2
    b.retain_grad()
    b.mul_(3)
    assert b.retains_grad
    (b * 7).sum().backward()
    assert (grad(b), grad(a)) == ([7, 7], [42, 42])


def test_a_hook_stays_with_the_old_version() -> None:
    seen = []
    a = leaf(1, 1)
    b = a * 2
    b.register_hook(lambda g: seen.append(g.tolist()))
    b.mul_(3)
    (b * 7).sum().backward()
    assert seen == [[21, 21]]


def test_retain_grad_runs_after_the_hooks() -> None:
    a = leaf(1, 1)
    b = a * 2
    b.retain_grad()
    b.register_hook(lambda g: g * 10)
    b.sum().backward()
    assert (grad(b), grad(a)) == ([10, 10], [20, 20])


def test_hooks_of_a_leaf_see_the_sum_once_in_order() -> None:
    a = leaf(1, 1)
    a.register_hook(lambda g: g * 2)
    handle = a.register_hook(lambda g: g + 1)
    (a * 1 + a * 1).sum().backward()
    assert grad(a) == [5, 5]
    handle.remove()
    (g,) = grad_of(a.sum(), a)
    assert g is not None
    assert g.tolist() == [2, 2]


def test_hooks_on_the_gradient_of_grad() -> None:
    a = leaf(1, 1)
    a.register_hook(lambda g: g * 2)
    assert first(grad_of(a.sum(), a)) == [2, 2]
    assert a.grad is None


def test_a_hook_after_accumulation() -> None:
    seen = []
    a = leaf(1, 1)
    a.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.tolist()))
    a.sum().backward()
    assert seen == [[1, 1]]
    with pytest.raises(GradientError, match=r"^cannot register a hook on a tensor"):
        plain(1).register_hook(print)
    with pytest.raises(GradientError, match=r"^post accumulate grad hooks cannot be"):
        (a * 1).register_post_accumulate_grad_hook(print)


def test_a_hook_keeps_a_gradient_that_is_not_changed_later() -> None:
    seen = []
    a = leaf(1, 1, 1)
    b = a * 1
    b[0] = 5.0
    b.register_hook(seen.append)
    b.sum().backward()
    assert seen[0].tolist() == [1, 1, 1]
    assert grad(a) == [0, 1, 1]


def test_an_assigned_gradient_must_fit() -> None:
    a = leaf(1, 1, 1)
    with pytest.raises(ValueError, match="attempting to assign a gradient of size"):
        a.grad = plain(1, 1)
    a.grad = None
    assert a.grad is None


def test_ties() -> None:
    a = leaf(1, 1, 0)
    (np.maximum(a, plain(1, 0, 0)).sum() + a.max()).backward()
    assert grad(a) == [1.0, 1.5, 0.5]
    b = leaf(0, 1)
    np.abs(b).sum().backward()
    assert grad(b) == [0, 1]


def test_nodes_have_names_and_next_functions() -> None:
    a = leaf(1, 2)
    y = (a * 2 - a).sum()
    node = y.grad_fn
    assert node is not None
    ((sub, nr),) = node.next_functions
    assert (node.name(), nr) == ("SumBackward0", 0)
    assert sub is not None
    assert sub.name() == "SubBackward0"
    (mul, _), (leaf_node, _) = sub.next_functions
    assert mul is not None
    assert leaf_node is not None
    assert (mul.name(), leaf_node.name()) == ("MulBackward0", "AccumulateGrad")
    assert mul.next_functions[0][0] is leaf_node
    assert "grad_fn=<SumBackward0>" in repr(y)
