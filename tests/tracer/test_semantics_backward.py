"""Section 4 of the catalogue: backward, grad, retain_grad, hooks."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from catalogue import line

from retrograde.ir.errors import GradientError, ShapeError
from retrograde.tracer.autograd import grad as grad_of
from retrograde.tracer.modes import no_grad
from retrograde.tracer.tensor import Tensor, tensor


def leaf(*values: float) -> Tensor:
    return tensor(np.array(values, float), requires_grad=True)


def plain(*values: float) -> Tensor:
    return tensor(np.array(values, float))


def grad(t: Tensor) -> Any:
    return None if t.grad is None else t.grad.tolist()


def values(x: Any) -> Any:
    if isinstance(x, tuple | list):
        return tuple(map(values, x))
    return x.tolist() if isinstance(x, Tensor) else x


def refused(call: Callable[[], Any], text: str, error: Any = GradientError) -> None:
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        call()


TWICE = (
    "Trying to backward through the graph a second time (or directly access saved "
    "tensors after they have already been freed)."
)
UNUSED = (
    "The differentiated Tensor at index 0 appears to not have been used in the graph. "
    "Set allow_unused=True if this is the desired behavior."
)
SCALARS = "grad can be implicitly created only for scalar outputs"
NO_GRAD_FN = "element 0 of tensors does not require grad and does not have a grad_fn"


@line(
    "4.1",
    "kept",
    "a=L(1,1); y=(a*a).sum(); y.backward(); E(lambda: y.backward())",
    torch="Trying to backward through the graph a second time (or directly access "
    "saved tensors after they have already been freed).",
)
def test_a_second_backward_needs_what_the_first_has_freed() -> None:
    a = leaf(1, 1)
    y = (a * a).sum()
    y.backward()
    refused(y.backward, TWICE)
    assert grad(a) == [2, 2]


@line(
    "4.2",
    "better",
    "a=L(1,1); y=(a*2).sum(); y.backward(); E(lambda: y.backward())",
    torch="Trying to backward through the graph a second time",
    ours="a product with a number saves nothing, so that nothing was freed",
)
def test_a_product_with_a_number_saves_nothing() -> None:
    a = leaf(1, 1)
    y = (a * 2).sum()
    y.backward()
    y.backward()
    assert grad(a) == [4, 4]


@line(
    "4.3",
    "kept",
    "a=L(1,1); y=(a+1).sum(); y.backward(); y.backward(); print(a.grad)",
    torch="tensor([2., 2.])",
)
def test_a_second_backward_works_where_nothing_was_saved() -> None:
    a = leaf(1, 1)
    y = (a + 1).sum()
    y.backward()
    y.backward()
    assert grad(a) == [2, 2]


@line(
    "4.4",
    "kept",
    """
a=L(1,1); y=(a*a).sum(); y.backward(retain_graph=True); g=a.grad
y.backward(retain_graph=True); print(a.grad is g, a.grad)
""",
    torch="True tensor([4., 4.])",
)
def test_gradients_add_up_in_place() -> None:
    a = leaf(1, 1)
    y = (a * a).sum()
    y.backward(retain_graph=True)
    g = a.grad
    y.backward(retain_graph=True)
    assert a.grad is g
    assert grad(a) == [4, 4]


@line(
    "4.5",
    "kept",
    """
a=L(1,1); y=(a*a).sum(); y.backward(retain_graph=True); g=a.grad
y.backward(create_graph=True); print(a.grad is g, g)
""",
    torch="False tensor([2., 2.])",
)
def test_recorded_gradients_add_up_in_new_memory() -> None:
    a = leaf(1, 1)
    y = (a * a).sum()
    y.backward(retain_graph=True)
    g = a.grad
    assert g is not None
    y.backward(create_graph=True)
    assert a.grad is not g
    assert (g.tolist(), grad(a)) == ([2, 2], [4, 4])


@line(
    "4.6",
    "kept",
    """
a=L(1,1); g=Z(2,2); (a*1).backward(g); print(a.grad.data_ptr()==g.data_ptr())
""",
    torch="False",
)
def test_a_gradient_that_was_passed_in_is_not_taken_over() -> None:
    a, g = leaf(1, 1), plain(2, 2)
    (a * 1).backward(g)
    b = a * 1
    b.retain_grad()
    b.backward(g)
    for t in (a, b):
        assert t.grad is not None
        assert not np.shares_memory(t.grad.numpy(), g.numpy())


@line(
    "4.7",
    "better",
    """
a=L(1,1); b=L(1,1); g1,g2=torch.autograd.grad(a+b,[a,b],Z(1,1))
print(g1.data_ptr()==g2.data_ptr())
""",
    torch="True",
    ours="results of grad never share memory",
)
def test_results_of_grad_never_share_memory() -> None:
    a, b, one = leaf(1, 1), leaf(1, 1), plain(1, 1)
    g1, g2 = grad_of(a + b, [a, b], one)
    assert g1 is not None
    assert g2 is not None
    g1.add_(1)
    assert (g2.tolist(), one.tolist()) == ([1, 1], [1, 1])


@line(
    "4.8",
    "better",
    "a=L(1,1); print(torch.autograd.grad(a.sum(),a)[0].stride())",
    torch="(0,)",
    ours="results of grad may be written: each element is its own",
)
def test_results_of_grad_may_be_written() -> None:
    a = leaf(1, 1)
    (g,) = grad_of(a.sum(), a)
    assert g is not None
    g[0] = 5
    assert (g.strides, g.tolist()) == ((8,), [5, 1])


@line(
    "4.9",
    "kept",
    "a=L(1,1); b=L(1,1); E(lambda: torch.autograd.grad(a.sum(),b))",
    torch="The differentiated Tensor at index 0 appears to not have been used in the "
    "graph. Set allow_unused=True if this is the desired behavior.",
)
def test_grad_of_what_was_not_used() -> None:
    a, b = leaf(1, 1), leaf(1, 1)
    refused(lambda: grad_of(a.sum(), b), UNUSED)
    refused(lambda: grad_of(a.sum(), b, allow_unused=False), UNUSED)


@line(
    "4.10",
    "kept",
    """
a=L(1,1); b=L(1,1)
print(torch.autograd.grad(a.sum(),b,allow_unused=True))
print(torch.autograd.grad(a.sum(),b,materialize_grads=True))
E(lambda: torch.autograd.grad(a.sum(),b,allow_unused=False,materialize_grads=True))
""",
    torch="(None,) | (tensor([0., 0.]),) | Expected allow_unused to be True or not "
    "passed when materialize_grads=True, but got: allow_unused=False.",
)
def test_grad_of_what_was_not_used_may_be_none_or_zeros() -> None:
    a, b = leaf(1, 1), leaf(1, 1)
    assert grad_of(a.sum(), b, allow_unused=True) == (None,)
    assert values(grad_of(a.sum(), b, materialize_grads=True)) == ([0, 0],)
    refused(
        lambda: grad_of(a.sum(), b, allow_unused=False, materialize_grads=True),
        "Expected allow_unused to be True or not passed when materialize_grads=True",
        ValueError,
    )


@line(
    "4.11",
    "kept",
    "a=L(1,1); E(lambda: torch.autograd.grad((a*Z(1,1)).sum(),Z(1,1)))",
    torch="One of the differentiated Tensors does not require grad",
)
def test_grad_in_what_requires_none() -> None:
    a = leaf(1, 1)
    refused(
        lambda: grad_of((a * plain(1, 1)).sum(), plain(1, 1)),
        "One of the differentiated Tensors does not require grad",
    )


@line(
    "4.12",
    "kept",
    "a=L(1,1); E(lambda: (a*2).backward()); E(lambda: Z(1,1).sum().backward())",
    torch="grad can be implicitly created only for scalar outputs | element 0 of "
    "tensors does not require grad and does not have a grad_fn",
)
def test_backward_from_an_array_or_a_constant() -> None:
    a = leaf(1, 1)
    refused((a * 2).backward, SCALARS)
    refused(plain(1, 1).sum().backward, NO_GRAD_FN)


@line(
    "4.13",
    "kept",
    """
a=L(1,1); b=a*2; c=b+1; b.mul_(2)
print(torch.autograd.grad(c.sum(),b,allow_unused=True))
""",
    torch="(None,)",
)
def test_a_written_tensor_means_its_new_version() -> None:
    a = leaf(1, 1)
    b = a * 2
    c = b + 1
    b.mul_(2)
    assert grad_of(c.sum(), b, allow_unused=True) == (None,)


@line(
    "4.14",
    "kept",
    """
a=L(2,3); b=a*a; b.mul_(a)
g,=torch.autograd.grad(b.sum(),a,create_graph=True)
print(torch.autograd.grad(g.sum(),a)[0])
""",
    torch="tensor([12., 18.])",
)
def test_the_second_derivative_of_a_write() -> None:
    a = leaf(2, 3)
    b = a * a
    b.mul_(a)
    (g,) = grad_of(b.sum(), a, create_graph=True)
    assert g is not None
    assert values(grad_of(g.sum(), a)) == ([12, 18],)


@line(
    "4.15",
    "kept",
    """
a=L(2,3); b=a*a; v=b[:1]; v.mul_(a[1:])
g,=torch.autograd.grad(b.sum(),a,create_graph=True)
print(torch.autograd.grad(g.sum(),a)[0])
""",
    torch="tensor([10.,  6.])",
)
def test_the_second_derivative_of_a_write_through_a_view() -> None:
    a = leaf(2, 3)
    b = a * a
    v = b[:1]
    v.mul_(a[1:])
    (g,) = grad_of(b.sum(), a, create_graph=True)
    assert g is not None
    assert values(grad_of(g.sum(), a)) == ([10, 6],)


@line(
    "4.16",
    "kept",
    """
a=L(1,1); b=a*2; b.retain_grad(); b.mul_(3); (b*7).sum().backward()
print(b.grad, a.grad)
""",
    torch="tensor([7., 7.]) tensor([42., 42.])",
)
def test_retain_grad_follows_the_tensor() -> None:
    a = leaf(1, 1)
    b = a * 2
    b.retain_grad()
    b.mul_(3)
    (b * 7).sum().backward()
    assert (grad(b), grad(a)) == ([7, 7], [42, 42])


@line(
    "4.17",
    "kept",
    """
a=L(1,1); b=a*2; b.register_hook(lambda g: print(g)); b.mul_(3)
(b*7).sum().backward()
""",
    torch="tensor([21., 21.])",
)
def test_a_hook_stays_with_the_value_it_was_registered_on() -> None:
    a = leaf(1, 1)
    b = a * 2
    seen: list[Any] = []
    b.register_hook(lambda g: seen.append(g.tolist()))
    b.mul_(3)
    (b * 7).sum().backward()
    assert seen == [[21, 21]]


@line(
    "4.18",
    "better",
    """
a=L(1,1); b=a*2; v=b[:1]; v.register_hook(lambda g: print('never')); b.mul_(3)
v.sum().backward(); print(a.grad)
""",
    torch="tensor([6., 0.])",
    ours="the hook of a view goes along when another alias is written: it is called",
)
def test_the_hook_of_a_view_is_not_lost() -> None:
    a = leaf(1, 1)
    b = a * 2
    v = b[:1]
    seen: list[Any] = []
    handle = v.register_hook(lambda g: seen.append(g.tolist()))
    b.mul_(3)
    v.sum().backward()
    assert (seen, grad(a)) == ([[1]], [6, 0])
    handle.remove()
    v.sum().backward()
    assert seen == [[1]]


@line(
    "4.19",
    "better",
    """
a=L(1,1); b=a*2; v=b[:1]; v.register_hook(lambda g: print('never')); v.mul_(3)
v.sum().backward(); print(a.grad)
""",
    torch="tensor([6., 0.])",
    ours="called with the gradient of the value that the view had, as for any tensor",
)
def test_the_hook_of_a_view_stays_with_the_value_that_was_overwritten() -> None:
    a = leaf(1, 1)
    b = a * 2
    v = b[:1]
    seen: list[Any] = []
    v.register_hook(lambda g: seen.append(g.tolist()))
    v.mul_(3)
    v.sum().backward()
    assert (seen, grad(a)) == ([[3]], [6, 0])


@line(
    "4.20",
    "kept",
    """
a=L(1,1); b=a*2; b.retain_grad(); b.register_hook(lambda g: g*10)
b.sum().backward(); print(b.grad, a.grad)
""",
    torch="tensor([10., 10.]) tensor([20., 20.])",
)
def test_retain_grad_comes_after_hooks() -> None:
    a = leaf(1, 1)
    b = a * 2
    b.retain_grad()
    b.register_hook(lambda g: g * 10)
    b.sum().backward()
    assert (grad(b), grad(a)) == ([10, 10], [20, 20])


@line(
    "4.21",
    "kept",
    """
a=L(1,1); a.register_hook(lambda g:g*2); a.register_hook(lambda g:g+1)
(a*1+a*1).sum().backward(); print(a.grad)
""",
    torch="tensor([5., 5.])",
)
def test_hooks_of_leaves_run_once_on_the_sum_in_order() -> None:
    a = leaf(1, 1)
    a.register_hook(lambda g: g * 2)
    a.register_hook(lambda g: g + 1)
    (a * 1 + a * 1).sum().backward()
    assert grad(a) == [5, 5]


@line(
    "4.22",
    "kept",
    """
a=L(1,1); a.register_hook(lambda g:g*2)
print(torch.autograd.grad(a.sum(),a)[0], a.grad)
""",
    torch="tensor([2., 2.]) None",
)
def test_hooks_of_leaves_run_in_grad() -> None:
    a = leaf(1, 1)
    a.register_hook(lambda g: g * 2)
    assert values(grad_of(a.sum(), a)) == ([2, 2],)
    assert a.grad is None


@line(
    "4.23",
    "kept",
    """
a=L(1,1); a.register_post_accumulate_grad_hook(lambda t: print(t.grad))
a.sum().backward(); a.sum().backward(inputs=[a]); torch.autograd.grad(a.sum(),a)
""",
    torch="tensor([1., 1.]) | tensor([2., 2.])",
)
def test_post_accumulate_hooks_see_the_gradient() -> None:
    a = leaf(1, 1)
    seen: list[Any] = []
    a.register_post_accumulate_grad_hook(lambda t: seen.append(grad(t)))
    a.sum().backward()
    a.sum().backward(inputs=[a])
    grad_of(a.sum(), a)
    assert seen == [[1, 1], [2, 2]]


@line(
    "4.24",
    "kept",
    """
a=L(1,1); E(lambda: Z(1,).register_hook(print))
E(lambda: (a*1).register_post_accumulate_grad_hook(print))
""",
    torch="cannot register a hook on a tensor that doesn't require gradient | "
    "post accumulate grad hooks cannot be registered on non-leaf tensors",
)
def test_where_hooks_cannot_be_registered() -> None:
    a = leaf(1, 1)
    refused(
        lambda: plain(1).register_hook(print),
        "cannot register a hook on a tensor that doesn't require gradient",
    )
    refused(
        lambda: (a * 1).register_post_accumulate_grad_hook(print),
        "post accumulate grad hooks cannot be registered on non-leaf tensors",
    )


@line(
    "4.25",
    "better",
    "a=L(1,1); y=(a*a).sum(); a.data=Z(5,5); y.backward(); print(a.grad, a._version)",
    torch="tensor([10., 10.]) 0",
    ours="what was saved before stays what it was: the gradient is [2, 2]",
)
def test_data_may_be_exchanged_under_the_graph() -> None:
    a = leaf(1, 1)
    y = (a * a).sum()
    a.data = plain(5, 5)
    y.backward()
    assert (grad(a), a._version, a.tolist()) == ([2, 2], 0, [5, 5])


@line(
    "4.26",
    "kept",
    """
a=L(1,1); b=L(1,1)*2
with torch.no_grad(): a.set_(Z(0,0,0))
print(a.shape, a.is_leaf); b.set_(Z(0,0,0)); print(n(b))
E(lambda: b.sum().backward()); E(lambda: setattr(a, 'grad', Z(1,1)))
""",
    torch="torch.Size([3]) True | NotImplemented | derivative for set_ is not "
    "implemented | attempting to assign a gradient of size '[2]' to a tensor of size "
    "'[3]'.",
)
def test_set_gives_other_memory_and_has_no_derivative() -> None:
    a, b = leaf(1, 1), leaf(1, 1) * 2
    with no_grad():
        a.set_(plain(0, 0, 0))
    assert (a.shape, a.is_leaf) == ((3,), True)
    b.set_(plain(0, 0, 0))
    assert b.grad_fn is not None
    assert b.grad_fn.name() == "NotImplemented"
    refused(lambda: b.sum().backward(), "derivative for set_ is not implemented")
    refused(
        lambda: setattr(a, "grad", plain(1, 1)),
        "attempting to assign a gradient of size '[2]' to a tensor of size '[3]'.",
        ShapeError,
    )


@line(
    "4.27",
    "kept",
    "a=L(1,1,1); E(lambda: setattr(a,'grad',Z(1,1)))",
    torch="attempting to assign a gradient of size '[2]' to a tensor of size '[3]'.",
)
def test_a_gradient_has_the_shape_of_its_tensor() -> None:
    a = leaf(1, 1, 1)
    refused(
        lambda: setattr(a, "grad", plain(1, 1)),
        "attempting to assign a gradient of size '[2]' to a tensor of size '[3]'.",
        ShapeError,
    )
    a.grad = plain(1, 2, 3)
    a.sum().backward()
    assert grad(a) == [2, 3, 4]


# What the catalogue says of hooks, inputs and modes without a program of its own.


@line(
    "4.28",
    "kept",
    """
def P(tag, f): return lambda *g: print(tag, [x.tolist() for x in g[0]]) or f(*g)
a=L(1,2); b=a.clone()
b.register_hook(lambda g: print('tensor', g.tolist()) or g*2); b.retain_grad()
b.grad_fn.register_prehook(P('before', lambda g: (g[0]*10,)))
b.grad_fn.register_hook(P('after', lambda g, out: print(out[0].tolist())))
node=b.grad_fn.next_functions[0][0]
node.register_prehook(P('leaf before', lambda g: (g[0]*5,)))
node.register_hook(P('leaf after', lambda g, out: print(out[0].tolist())))
a.register_hook(lambda g: print('leaf', g.tolist()))
a.register_post_accumulate_grad_hook(lambda t: print('accumulated', t.grad.tolist()))
b.sum().backward(); print(b.grad.tolist())
""",
    torch="tensor [1.0, 1.0] | before [[2.0, 2.0]] | after [[20.0, 20.0]] | "
    "[20.0, 20.0] | leaf [20.0, 20.0] | leaf before [[20.0, 20.0]] | "
    "accumulated [100.0, 100.0] | leaf after [] | [100.0, 100.0] | [2.0, 2.0]",
)
def test_the_order_of_hooks() -> None:
    seen: list[Any] = []

    def note(tag: str, factor: float | None = None) -> Callable[..., Any]:
        def hook(gs: Any, *more: Any) -> Any:
            seen.append((tag, *map(values, (gs, *more))))
            return None if factor is None else (gs[0] * factor,)

        return hook

    a = leaf(1, 2)
    b = a.clone()
    b.register_hook(lambda g: seen.append(("tensor", values(g))) or g * 2)  # type: ignore[func-returns-value]
    b.retain_grad()
    node = b.grad_fn
    assert node is not None
    node.register_prehook(note("before", 10))
    node.register_hook(note("after"))
    end = node.next_functions[0][0]
    assert end is not None
    end.register_prehook(note("leaf before", 5))
    end.register_hook(note("leaf after"))
    a.register_hook(lambda g: seen.append(("leaf", values(g))))
    a.register_post_accumulate_grad_hook(lambda t: seen.append(("sum", grad(t))))
    b.sum().backward()
    assert seen == [
        ("tensor", [1, 1]),
        ("before", ([2, 2],)),
        ("after", ([20, 20],), ([20, 20],)),
        ("leaf", [20, 20]),
        ("leaf before", ([20, 20],)),
        ("sum", [100, 100]),
        ("leaf after", (), ([100, 100],)),
    ]
    assert grad(b) == [2, 2]


@line(
    "4.29",
    "kept",
    """
a=L(1,2); b=a+a; b.grad_fn.register_hook(lambda gi, go: (gi[0]*10, None))
b.sum().backward(); print(a.grad)
E(lambda: [b.grad_fn.register_hook(lambda gi, go: gi[:1]), b.sum().backward()])
""",
    torch="tensor([10., 10.]) | hook '<lambda>' has returned an incorrect number of "
    "values (got 1, but expected 2)",
)
def test_hooks_after_a_node_replace_its_gradients() -> None:
    a = leaf(1, 2)
    b = a + a
    node = b.grad_fn
    assert node is not None
    node.register_hook(lambda gi, go: (gi[0] * 10, None))
    b.sum().backward()
    assert grad(a) == [10, 10]
    node.register_hook(lambda gi, go: gi[:1])
    refused(
        b.sum().backward,
        "hook '<lambda>' has returned an incorrect number of values (got 1, but "
        "expected 2)",
    )


@line(
    "4.30",
    "kept",
    """
a=L(1,2); b=a+a; b.register_hook(lambda g: 3); E(lambda: b.sum().backward())
b=a+a; b.register_hook(lambda g: g[:1]); E(lambda: b.sum().backward())
b=a+a; b.grad_fn.register_prehook(lambda g: g[0]); E(lambda: b.sum().backward())
""",
    torch="expected Variable, but hook returned 'int' | hook '<lambda>' has changed "
    "the size of value | expected tuple, but hook returned 'Tensor'",
)
def test_what_hooks_may_not_return() -> None:
    a = leaf(1, 2)
    b, c, d = a + a, a + a, a + a
    b.register_hook(lambda g: 3)
    refused(b.sum().backward, "expected Variable, but hook returned 'int'")
    c.register_hook(lambda g: g[:1])
    refused(c.sum().backward, "hook '<lambda>' has changed the size of value")
    assert d.grad_fn is not None
    d.grad_fn.register_prehook(lambda g: g[0])
    refused(d.sum().backward, "expected tuple, but hook returned 'Tensor'")


@line(
    "4.31",
    "better",
    """
a=L(1,1); g=Z(1,1); b=a+0; b.register_hook(lambda g: [g.mul_(2), None][1])
b.backward(g); print(a.grad, g)
""",
    torch="tensor([2., 2.]) tensor([2., 2.])",
    ours="a hook that writes into the gradient changes nothing else",
)
def test_hooks_may_write_into_the_gradient() -> None:
    a, b = leaf(1, 1), leaf(1, 1)
    c, d = a + 0, b + 0
    c.register_hook(lambda g: [g.mul_(2), None][1])
    one = plain(1, 1)
    (c + d).backward(one)
    assert (grad(a), grad(b), one.tolist()) == ([2, 2], [1, 1], [1, 1])


@line(
    "4.32",
    "kept",
    """
a=L(1,2); c=L(1,1); b=a*2; (b*c).sum().backward(inputs=[b, a])
print(b.grad, a.grad, c.grad)
E(lambda: a.sum().backward(inputs=[]))
E(lambda: torch.autograd.grad(a.sum(), []))
""",
    torch="tensor([1., 1.]) tensor([2., 2.]) None | `inputs` argument to `backward()` "
    "cannot be empty. | `inputs` argument to `grad()` cannot be empty.",
)
def test_backward_into_chosen_inputs() -> None:
    a, c = leaf(1, 2), leaf(1, 1)
    b = a * 2
    (b * c).sum().backward(inputs=[b, a])
    assert (grad(b), grad(a), grad(c)) == ([1, 1], [2, 2], None)
    refused(
        lambda: a.sum().backward(inputs=[]),
        "`inputs` argument to `backward()` cannot be empty.",
    )
    refused(
        lambda: grad_of(a.sum(), []),
        "`inputs` argument to `grad()` cannot be empty.",
    )


@line(
    "4.33",
    "kept",
    """
a=L(1,2); E(lambda: (a*2).backward(Z(1))); E(lambda: a.sum().backward(Z(1,2)))
print(torch.autograd.grad([a*2, (a*3).sum()], a, [Z(1,1), None]))
""",
    torch="Mismatch in shape: grad_output[0] has a shape of torch.Size([1]) and "
    "output[0] has a shape of torch.Size([2]). | Mismatch in shape: grad_output[0] has "
    "a shape of torch.Size([2]) and output[0] has a shape of torch.Size([]). | "
    "(tensor([5., 5.]),)",
)
def test_gradients_that_are_passed_in_have_the_shape_of_the_outputs() -> None:
    a = leaf(1, 2)
    refused(lambda: (a * 2).backward(plain(1)), "Mismatch in shape", ShapeError)
    refused(lambda: a.sum().backward(plain(1, 2)), "Mismatch in shape", ShapeError)
    g = grad_of([a * 2, (a * 3).sum()], a, [plain(1, 1), None])
    assert values(g) == ([5, 5],)


@line(
    "4.34",
    "kept",
    """
x=L(3); y=x*x*x*x; k=dict(create_graph=True)
g,=torch.autograd.grad(y, x, **k); h,=torch.autograd.grad(g, x, **k)
print(g, h, torch.autograd.grad(h, x))
""",
    torch="tensor([108.], grad_fn=<",
)
def test_first_second_and_third_derivatives() -> None:
    x = leaf(3)
    y = x * x * x * x
    (g,) = grad_of(y, x, create_graph=True)
    (h,) = grad_of(g, x, create_graph=True)
    (k,) = grad_of(h, x)
    assert values([g, h, k]) == ([108], [108], [72])
    assert k is not None
    assert not k.requires_grad


@line(
    "4.35",
    "kept",
    """
a=L(1,1); print(torch.autograd.grad(a, a, Z(5,5))); a.backward(Z(1,1)); print(a.grad)
with torch.no_grad(): (a*1).requires_grad_(); b=a*1
print(b.requires_grad); E(lambda: (a*1).requires_grad_(False))
""",
    torch="(tensor([5., 5.]),) | tensor([1., 1.]) | False | you can only change "
    "requires_grad flags of leaf variables.",
)
def test_leaves_as_outputs_and_requires_grad() -> None:
    a = leaf(1, 1)
    assert values(grad_of(a, a, plain(5, 5))) == ([5, 5],)
    a.backward(plain(1, 1))
    assert grad(a) == [1, 1]
    with no_grad():
        assert (a * 1).requires_grad_().is_leaf
        assert not (a * 1).requires_grad
    refused(
        lambda: (a * 1).requires_grad_(False),
        "you can only change requires_grad flags of leaf variables.",
    )
