"""Section 6 of the catalogue: functions with a derivative of their own."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from catalogue import line

from retrograde import gradcheck
from retrograde.ir.errors import (
    GradientBreakError,
    GradientError,
    MutationError,
    ShapeError,
)
from retrograde.tracer.autograd import grad as grad_of
from retrograde.tracer.function import Function, once_differentiable
from retrograde.tracer.modes import is_grad_enabled
from retrograde.tracer.tensor import Tensor, tensor


def leaf(*values: float) -> Tensor:
    return tensor(np.array(values, float), requires_grad=True)


def plain(*values: float) -> Tensor:
    return tensor(np.array(values, float))


def name(t: Tensor) -> str | None:
    return None if t.grad_fn is None else t.grad_fn.name()


def grad(t: Tensor) -> Any:
    return None if t.grad is None else t.grad.tolist()


def values(x: Any) -> Any:
    if isinstance(x, tuple | list):
        return tuple(map(values, x))
    return x.tolist() if isinstance(x, Tensor) else x


def refused(call: Callable[[], Any], text: str, error: Any = GradientError) -> None:
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        call()


def function(
    backward: Any, forward: Any = lambda ctx, x, *rest: x * 1, **more: Any
) -> type[Function]:
    """Return a Function called F."""
    methods = {"forward": forward, "backward": backward, **more}
    return type("F", (Function,), {k: staticmethod(f) for k, f in methods.items()})


class InPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 2 * g


class AsItIs(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 3 * g


DIRTY = "forward(ctx,x): x.mul_(2); ctx.mark_dirty(x); return x"
OVERRIDDEN = "and the autograd logic to handle view+inplace would override the custom"


@line(
    "6.1",
    "kept",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): x.mul_(2); ctx.mark_dirty(x); return x
    @staticmethod
    def backward(ctx,g): return 2*g
a=L(1,1,1); b=a*1; c=F.apply(b); print(c is b, n(b)); c.sum().backward(); print(a.grad)
""",
    torch="True FBackward | tensor([2., 2., 2.])",
)
def test_a_dirty_input_is_returned_and_rebased() -> None:
    a = leaf(1, 1, 1)
    b = a * 1
    c = InPlace.apply(b)
    assert c is b
    assert name(b) == "InPlaceBackward"
    assert b._version > 0
    c.sum().backward()
    assert (b.tolist(), grad(a)) == ([2, 2, 2], [2, 2, 2])


@line(
    "6.2",
    "kept",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): x.mul_(2); ctx.mark_dirty(x); return x
    @staticmethod
    def backward(ctx,g): return 2*g
a=L(1,1,1); E(lambda: F.apply(a)); E(lambda: F.apply(a[:1]))
""",
    torch="a leaf Variable that requires grad has been used in an in-place operation. "
    "| a view of a leaf Variable that requires grad is being used in an in-place "
    "operation.",
)
def test_a_leaf_cannot_be_dirty() -> None:
    a = leaf(1, 1, 1)
    refused(
        lambda: InPlace.apply(a),
        "a leaf Variable that requires grad has been used in an in-place operation.",
        MutationError,
    )
    refused(
        lambda: InPlace.apply(a[:1]),
        "a view of a leaf Variable that requires grad is being used in an in-place",
        MutationError,
    )


@line(
    "6.3",
    "kept",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): x.mul_(2); ctx.mark_dirty(x); return x
    @staticmethod
    def backward(ctx,g): return 2*g
a=L(1,1,1); b=a*1; v=b[:2]; F.apply(v); print(n(b), n(v))
b.sum().backward(); print(a.grad)
""",
    torch="CopySlices AsStridedBackward0 | tensor([2., 2., 1.])",
)
def test_a_dirty_view_is_a_write_into_its_base() -> None:
    a = leaf(1, 1, 1)
    b = a * 1
    v, w = b[:2], b[1:]
    assert InPlace.apply(v) is v
    assert (name(b), name(v)) == ("CopySlices", "AsStridedBackward0")
    (b + w[0] + v[1]).sum().backward()
    assert (b.tolist(), grad(a)) == ([2, 2, 1], [2, 14, 1])


@line(
    "6.4",
    "kept",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): return x
    @staticmethod
    def backward(ctx,g): return 3*g
a=L(1,1); b=a*1; c=F.apply(b); print(c is b, c._is_view(), c._base is b, n(c), n(b))
c.sum().backward(); print(a.grad)
""",
    torch="False True True FBackward MulBackward0 | tensor([3., 3.])",
)
def test_an_input_that_is_returned_becomes_a_view() -> None:
    a = leaf(1, 1)
    b = a * 1
    c = AsItIs.apply(b)
    assert c is not b
    assert c._base is b
    assert (name(c), name(b)) == ("AsItIsBackward", "MulBackward0")
    c.sum().backward()
    assert grad(a) == [3, 3]
    z = plain(1, 1)
    d = AsItIs.apply(z)  # without a graph, an ordinary view
    d.mul_(2)
    assert (d is z, d._is_view(), z.tolist()) == (False, True, [2, 2])


@line(
    "6.5",
    "kept",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): return x
    @staticmethod
    def backward(ctx,g): return 3*g
b=L(1,1)*1; c=F.apply(b); E(lambda: c.mul_(2)); E(lambda: c[:1].mul_(2))
b.mul_(2); E(lambda: c.grad_fn)
""",
    torch="Output 0 of F is a view and is being modified inplace. This view was "
    "created inside a custom Function | Output 0 of Slice is a view and is being "
    "modified inplace. | Output 0 of F is a view and its base or another view of its "
    "base has been modified inplace.",
)
def test_a_view_from_a_function_has_a_guard() -> None:
    a = leaf(1, 1)
    b = a * 1
    c = AsItIs.apply(b)
    y = c.sum()
    inside = "is a view and is being modified inplace. This view was created inside"
    refused(lambda: c.mul_(2), f"Output 0 of AsItIs {inside}", MutationError)
    refused(lambda: c[:1].mul_(2), f"Output 0 of Slice {inside}", MutationError)
    assert b.tolist() == [1, 1]
    b.mul_(2)
    refused(
        lambda: c.grad_fn,
        "Output 0 of AsItIs is a view and its base or another view of its base has",
        MutationError,
    )
    y.backward()  # used before the write
    assert grad(a) == [3, 3]


@line(
    "6.6",
    "kept",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): x.mul_(2); ctx.mark_dirty(x); return x*1
    @staticmethod
    def backward(ctx,g): return g
E(lambda: F.apply(L(1)*1))
""",
    torch="Some elements marked as dirty during the forward method were not returned "
    "as output.",
)
def test_dirty_inputs_have_to_be_returned() -> None:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x * 1

    refused(
        lambda: function(lambda ctx, g: g, forward).apply(leaf(1) * 1),
        "Some elements marked as dirty during the forward method were not returned as "
        "output. The inputs that are modified inplace must all be outputs of the "
        "Function.",
        MutationError,
    )


@line(
    "6.7",
    "kept",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): x.mul_(2); ctx.mark_dirty(x); return x, x*1
    @staticmethod
    def backward(ctx,g,h): return g
E(lambda: F.apply((L(1,1)*1)[:1]))
""",
    torch="If your Function modifies inplace an input that is a view of another "
    "Tensor, your Function cannot return more than one Tensor.",
)
def test_a_dirty_view_is_the_only_output() -> None:
    def forward(ctx: Any, x: Any) -> Any:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x, x * 1

    f = function(lambda ctx, g, h: 2 * g + 2 * h, forward)
    refused(
        lambda: f.apply((leaf(1, 1) * 1)[:1]),
        "If your Function modifies inplace an input that is a view of another Tensor, "
        "your Function cannot return more than one Tensor.",
        MutationError,
    )
    a = leaf(1, 1)
    x, y = f.apply(a * 1)  # of a tensor of its own it can
    (x + 10 * y).sum().backward()
    assert grad(a) == [22, 22]


@line(
    "6.8",
    "kept",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x,y): return x*y
    @staticmethod
    def backward(ctx,g): return g
E(lambda: F.apply(L(1),L(1)).backward())
""",
    torch="function FBackward returned an incorrect number of gradients (expected 2, "
    "got 1)",
)
def test_backward_returns_a_gradient_for_every_input() -> None:
    for back, got in ((lambda ctx, g: g, 1), (lambda ctx, g: (g, g, g), 3)):
        y = function(back).apply(leaf(1), leaf(1))
        refused(
            y.backward,
            "function FBackward returned an incorrect number of gradients (expected 2, "
            f"got {got})",
        )


@line(
    "6.9",
    "kept",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x,y): return x*y
    @staticmethod
    def backward(ctx,g): return g, 2*g, None, None
a,b=L(1),L(1); F.apply(a,b).backward(); print(a.grad, b.grad)
""",
    torch="tensor([1.]) tensor([2.])",
)
def test_more_gradients_than_inputs_are_fine_where_they_are_none() -> None:
    a, b = leaf(1), leaf(1)
    function(lambda ctx, g: (g, 2 * g, None, None)).apply(a, b).backward()
    assert (grad(a), grad(b)) == ([1], [2])


@line(
    "6.10",
    "kept",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): return x*1
    @staticmethod
    def backward(ctx,g): return g[:1]
E(lambda: F.apply(L(1,1)).sum().backward())
""",
    torch="Function FBackward returned an invalid gradient at index 0 - got [1] but "
    "expected shape compatible with [2]",
)
def test_a_gradient_that_is_too_small() -> None:
    y = function(lambda ctx, g: g[:1]).apply(leaf(1, 1)).sum()
    refused(
        y.backward,
        "Function FBackward returned an invalid gradient at index 0 - got [1] but "
        "expected shape compatible with [2]",
    )


@line(
    "6.11",
    "kept",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): return x*1
    @staticmethod
    def backward(ctx,g): return torch.ones(3,2)
a=L(1,1); F.apply(a).sum().backward(); print(a.grad)
""",
    torch="tensor([3., 3.])",
)
def test_a_gradient_that_is_larger_is_summed() -> None:
    a = leaf(1, 1)
    function(lambda ctx, g: tensor(np.ones((3, 2)))).apply(a).sum().backward()
    assert grad(a) == [3, 3]


@line(
    "6.12",
    "kept",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x):
        print(torch.is_grad_enabled(), x.requires_grad, (x*2).requires_grad); return x*1
    @staticmethod
    def backward(ctx,g): print(torch.is_grad_enabled()); return g
a=L(1); F.apply(a).backward(); F.apply(a).backward(create_graph=True)
""",
    torch="False True False | False | False True False | True",
)
def test_forward_is_not_recorded() -> None:
    seen: list[Any] = []

    def forward(ctx: Any, x: Any) -> Any:
        seen.append((is_grad_enabled(), x.requires_grad, (x * 2).requires_grad))
        return x * 1

    def backward(ctx: Any, g: Any) -> Any:
        seen.append(is_grad_enabled())
        return g

    f = function(backward, forward)
    f.apply(leaf(1)).backward()
    f.apply(leaf(1)).backward(create_graph=True)
    assert seen == [(False, True, False), False, (False, True, False), True]


def several(ctx: Any, x: Any) -> Any:
    i, c = (x > 0).astype(int), x * 5
    ctx.mark_non_differentiable(c)
    return i, c, x * 2, 3, None


@line(
    "6.13",
    "kept",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x):
        i,c=(x>0).long(),x*5; ctx.mark_non_differentiable(c); return i,c,x*2,3,None
    @staticmethod
    def backward(ctx,*g): print(g); return g[2]*2
a=L(1,1); o=F.apply(a); print([getattr(t,'requires_grad',t) for t in o])
o[2].sum().backward()
""",
    torch="[False, False, True, 3, None] | (tensor([0, 0]), tensor([0., 0.]), "
    "tensor([1., 1.]), None, None)",
)
def test_outputs_without_derivative_get_zeros() -> None:
    seen: list[Any] = []
    f = function(lambda ctx, *g: [seen.append(values(g)), g[2] * 2][1], several)
    a = leaf(1, 1)
    outs = f.apply(a)
    assert [getattr(t, "requires_grad", t) for t in outs] == [
        False,
        False,
        True,
        3,
        None,
    ]
    outs[2].sum().backward()
    assert seen == [([0, 0], [0, 0], [1, 1], None, None)]
    assert grad(a) == [2, 2]


@line(
    "6.14",
    "kept",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x):
        ctx.set_materialize_grads(False)
        i,c=(x>0).long(),x*5; ctx.mark_non_differentiable(c); return i,c,x*2,x*3
    @staticmethod
    def backward(ctx,*g): print(g); return g[2]*2
a=L(1,1); o=F.apply(a); o[2].sum().backward()
""",
    torch="(None, None, tensor([1., 1.]), None)",
)
def test_gradients_that_did_not_come_may_be_none() -> None:
    seen: list[Any] = []

    def forward(ctx: Any, x: Any) -> Any:
        ctx.set_materialize_grads(False)
        return (*several(ctx, x)[:3], x * 3)

    f = function(lambda ctx, *g: [seen.append(values(g)), g[2] * 2][1], forward)
    f.apply(leaf(1, 1))[2].sum().backward()
    assert seen == [(None, None, [1, 1], None)]


class Square(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * g * x


@line(
    "6.15",
    "kept",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): ctx.save_for_backward(x); return x*x
    @staticmethod
    def backward(ctx,g): x,=ctx.saved_tensors; return 2*g*x
b=L(1,1)*1; y=F.apply(b).sum(); b.add_(1); E(lambda: y.backward())
""",
    torch="one of the variables needed for gradient computation has been modified by "
    "an inplace operation",
)
def test_saved_inputs_that_were_overwritten() -> None:
    b = leaf(1, 1) * 1
    y = Square.apply(b).sum()
    b.add_(1)
    with pytest.raises(MutationError, match="one of the variables needed") as caught:
        y.backward()
    assert "test_semantics_function.py" in str(caught.value)


@line(
    "6.16",
    "better",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): ctx.x=x; return x*x
    @staticmethod
    def backward(ctx,g): return 2*g*ctx.x
a=L(1,1); b=a*1; y=F.apply(b).sum(); b.add_(1); y.backward(); print(a.grad)
""",
    torch="tensor([4., 4.])",
    ours="attributes of ctx are saved values, too: the version error",
)
def test_attributes_of_ctx_that_were_overwritten() -> None:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.x, ctx.y, ctx.k = x, x * x, 2.0
        return ctx.y

    f = function(lambda ctx, g: ctx.k * g * ctx.x + 0 * ctx.y, forward)
    a = leaf(3, 4)
    f.apply(a * 1).sum().backward()
    assert grad(a) == [6, 8]
    b = a * 1
    y = f.apply(b).sum()
    b.add_(1)
    with pytest.raises(MutationError, match="one of the variables needed"):
        y.backward()


class Exp(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = np.exp(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (y,) = ctx.saved_tensors
        return g * y


@line(
    "6.17",
    "kept",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): y=x.exp(); ctx.save_for_backward(y); return y
    @staticmethod
    def backward(ctx,g): y,=ctx.saved_tensors; print(n(y)); return g*y
a=L(0,0); k=dict(create_graph=True)
g,=torch.autograd.grad(F.apply(a).sum(),a,**k)
h,=torch.autograd.grad(g.sum(),a,**k); print(h.tolist())
""",
    torch="FBackward | FBackward | [1.0, 1.0]",
)
def test_saved_outputs_are_connected() -> None:
    a = leaf(0, 1)
    (g,) = grad_of(Exp.apply(a).sum(), a, create_graph=True)
    assert g is not None
    (h,) = grad_of(g.sum(), a, create_graph=True)
    assert h is not None
    (k,) = grad_of(h.sum(), a)
    assert k is not None
    np.testing.assert_allclose(k.tolist(), np.exp([0, 1]))
    node = Exp.apply(a).grad_fn
    assert node is not None
    assert node.saved_tensors[0].grad_fn is node  # type: ignore[attr-defined]


@line(
    "6.18",
    "better",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): d=2*x; ctx.save_for_backward(d); return x*x
    @staticmethod
    def backward(ctx,g): d,=ctx.saved_tensors; return g*d
a=L(1,1); g,=torch.autograd.grad(F.apply(a).sum(),a,create_graph=True)
print(g, g.requires_grad)
""",
    torch="tensor([2., 2.]) False",
    ours="the second derivative is an error: it would miss that of what was saved",
)
def test_saved_intermediates_have_no_silent_second_derivative() -> None:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(2 * x)
        return x * x

    f = function(lambda ctx, g: g * ctx.saved_tensors[0], forward)
    a = leaf(1, 1)
    (g,) = grad_of(f.apply(a).sum(), a, create_graph=True)
    assert g is not None
    assert (g.tolist(), g.requires_grad) == ([2, 2], True)
    text = "backward of F uses a saved value that is neither an input nor an output"
    refused(lambda: grad_of(g.sum(), a, retain_graph=True), text)
    refused(g.sum().backward, text)
    mask = function(lambda ctx, g: g * ctx.saved_tensors[0].detach(), forward)
    (g,) = grad_of((mask.apply(a) * a).sum(), a, create_graph=True)
    assert g is not None
    assert values(grad_of(g.sum(), a)) == ([4, 4],)  # of a constant, it is there


@line(
    "6.19",
    "better",
    """
from torch.autograd.function import once_differentiable
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): ctx.save_for_backward(x); return x*x
    @staticmethod
    @once_differentiable
    def backward(ctx,g): print(torch.is_grad_enabled()); return g*2*ctx.saved_tensors[0]
a=L(1,1); g,=torch.autograd.grad(F.apply(a),a,L(1,1),create_graph=True)
print(g.requires_grad); E(lambda: g.sum().backward())
g,=torch.autograd.grad(F.apply(a),a,Z(1,1),create_graph=True); print(g.requires_grad)
""",
    torch="False | True | trying to differentiate twice a function that was marked "
    "with @once_differentiable | False | False",
    ours="the error in every case, whether or not the gradient passed in requires one",
)
def test_once_differentiable() -> None:
    seen: list[bool] = []

    @once_differentiable
    def backward(ctx: Any, g: Any) -> Any:
        seen.append(is_grad_enabled())
        return g * 2 * ctx.saved_tensors[0]

    f = function(backward, Square.forward)
    a = leaf(1, 1)
    text = (
        "trying to differentiate twice a function that was marked with "
        "@once_differentiable"
    )
    for first in (leaf(1, 1), plain(1, 1)):
        (g,) = grad_of(f.apply(a), a, first, create_graph=True)
        assert g is not None
        assert (g.tolist(), g.requires_grad) == ([2, 2], True)
        refused(lambda g=g: grad_of(g.sum(), a, retain_graph=True), text)  # type: ignore[misc]
        refused(g.sum().backward, text)
    f.apply(a).sum().backward()
    assert grad(a) == [2, 2]
    assert seen == [False, False, False]


# What the catalogue leaves to the documentation of PyTorch.


@line(
    "6.20",
    "kept",
    """
import inspect; from torch.autograd import gradcheck as check
k=inspect.signature(check).parameters; print(k['eps'].default, k['atol'].default,
    k['rtol'].default, k['nondet_tol'].default)
def D(*v): return torch.tensor(v, dtype=torch.float64, requires_grad=True)
E(lambda: check(lambda x: x*x, D(1.).expand(3)))
E(lambda: check(lambda x: x.mul_(2), D(1.)))
print(check(lambda x: x.clone().mul_(2), D(1.)))
""",
    torch="1e-06 1e-05 0.001 0.0 | The 0th input has a dimension with stride 0. | a "
    "leaf Variable that requires grad is being used in an in-place operation. | True",
)
def test_what_gradcheck_assumes() -> None:
    k = inspect.signature(gradcheck).parameters
    names = ("eps", "atol", "rtol", "nondet_tol")
    assert [k[x].default for x in names] == [1e-6, 1e-5, 1e-3, 0]
    refused(
        lambda: gradcheck(lambda x: x * x, np.broadcast_to(leaf(1), (3,))),
        "gradcheck: input 0, f64[3], has a dimension with stride 0",
        ShapeError,
    )
    refused(
        lambda: gradcheck(lambda x: x.mul_(2), leaf(1)),
        "a leaf Variable that requires grad is being used in an in-place operation.",
        MutationError,
    )
    assert gradcheck(lambda x: x.copy().mul_(2), leaf(1))


@line(
    "6.21",
    "kept",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(x, k=2): return x*k
    @staticmethod
    def setup_context(ctx, inputs, output): ctx.k=inputs[1]
    @staticmethod
    def vjp(ctx, g): return g*ctx.k, None
a=L(1,1); y=F.apply(a); print(y.grad_fn.needs_input_grad)
y.sum().backward(); print(a.grad)
""",
    torch="(True, False) | tensor([2., 2.])",
)
def test_forward_without_ctx_and_vjp() -> None:
    class Scaled(Function):
        @staticmethod
        def forward(x: Any, k: float = 2) -> Any:
            return x * k

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.k = inputs[1]

        @staticmethod
        def vjp(ctx: Any, g: Any) -> Any:
            return g * ctx.k, None

    a = leaf(1, 1)
    y = Scaled.apply(a)
    assert y.grad_fn.needs_input_grad == (True, False)
    y.sum().backward()
    Scaled.apply(a, 5).sum().backward()
    assert grad(a) == [7, 7]


@line(
    "6.22",
    "kept",
    """
class F(torch.autograd.Function): pass
class G(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): return x*1
class H(G):
    @staticmethod
    def backward(ctx,g): return g
    @staticmethod
    def vjp(ctx,g): return g
for f in (F, G, H): E(lambda: f.apply(L(1)).backward())
""",
    torch="You must implement the forward function for custom autograd.Function. | You "
    "must implement either the backward or vjp method for your custom "
    "autograd.Function to use it with backward mode AD. | Implementing both 'backward' "
    "and 'vjp' for a custom Function is not allowed.",
)
def test_methods_that_are_missing() -> None:
    f = type("F", (Function,), {})
    g = type("G", (Function,), {"forward": staticmethod(lambda ctx, x: x * 1)})
    h = type(
        "H", (g,), {k: staticmethod(lambda ctx, g: g) for k in ("backward", "vjp")}
    )
    you_must = "You must implement"
    refused(lambda: f.apply(leaf(1)), f"{you_must} the forward", NotImplementedError)  # type: ignore[attr-defined]
    refused(lambda: g.apply(leaf(1)).backward(), you_must, NotImplementedError)  # type: ignore[attr-defined]
    refused(lambda: h.apply(leaf(1)).backward(), "Implementing both 'backward' and")  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"call Square\.apply"):
        Square()


@line(
    "6.23",
    "kept",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x,k): return x*k
    @staticmethod
    def backward(ctx,g): return g, g
E(lambda: F.apply(L(1), 3.0).backward())
class F(F):
    @staticmethod
    def backward(ctx,g): return 'no', None
E(lambda: F.apply(L(1), 3.0).backward())
a=L(1); F.apply.__self__.backward=staticmethod(lambda ctx,g: (g, g))
F.apply(a, Z(3)).backward(); print(a.grad)
""",
    torch="function FBackward returned a gradient different than None at position 2, "
    "but the corresponding forward input was not a Variable | expected Variable or "
    "None (got str) | tensor([1.])",
)
def test_gradients_of_what_has_none() -> None:
    refused(
        lambda: function(lambda ctx, g: (g, g)).apply(leaf(1), 3.0).backward(),
        "function FBackward returned a gradient different than None at position 2, but "
        "the corresponding forward input was not a Variable",
    )
    refused(
        lambda: function(lambda ctx, g: "no").apply(leaf(1)).backward(),
        "expected Variable or None (got str)",
    )
    a = leaf(1)
    function(lambda ctx, g: (g, g)).apply(a, plain(3)).backward()
    assert grad(a) == [1]


@line(
    "6.24",
    "kept",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): ctx.save_for_backward(x, None); return x*x
    @staticmethod
    def backward(ctx,g): return 2*g*ctx.saved_tensors[0]
a=L(1); y=F.apply(a); print(y.grad_fn.saved_tensors); y.backward()
E(lambda: y.backward())
E(lambda: y.grad_fn.saved_tensors); E(lambda: y.grad_fn.other)
class F(F):
    @staticmethod
    def forward(ctx,x): ctx.save_for_backward(1)
E(lambda: F.apply(a))
""",
    torch="(tensor([1.], requires_grad=True), None) | Trying to backward through the "
    "graph a second time | Trying to backward through the graph a second time | "
    "'FBackward' object has no attribute 'other' | save_for_backward can only save "
    "variables, but argument 0 is of type int",
)
def test_saved_tensors_are_freed() -> None:
    a = leaf(1)
    y = Square.apply(a)
    assert y.grad_fn.saved_tensors[0] is a
    y.backward()
    refused(y.backward, "Trying to backward through the graph a second time")
    refused(lambda: y.grad_fn.saved_tensors, "Trying to backward through the graph a")
    with pytest.raises(AttributeError, match="'SquareBackward' object has no attri"):
        _ = y.grad_fn.other
    bad = function(lambda ctx, g: g, lambda ctx, x: ctx.save_for_backward(1))
    refused(lambda: bad.apply(a), "save_for_backward can only save", TypeError)
    again = function(lambda ctx, g: 3 * g).apply(a)  # saves nothing: may run again
    again.backward()
    again.backward()


@line(
    "6.25",
    "better",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): x.mul_(2); return x*1
    @staticmethod
    def backward(ctx,g): return g
a=L(1,1); b=a*1; F.apply(b); (b*1).sum().backward(); print(b, a.grad)
""",
    torch="tensor([2., 2.], grad_fn=<MulBackward0>) tensor([1., 1.])",
    ours="a write into an input that was not marked is an error",
)
def test_writes_have_to_be_marked() -> None:
    def forward(ctx: Any, x: Any) -> Any:
        x.mul_(2)
        return x * 1

    b = leaf(1, 1) * 1
    refused(
        lambda: function(lambda ctx, g: g, forward).apply(b),
        "forward of F has written into input 0, f64[2], without ctx.mark_dirty",
        MutationError,
    )


@line(
    "6.26",
    "better",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x,l): return x*l[0]
    @staticmethod
    def backward(ctx,g): return g, None
class G(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): return [x*1]
    @staticmethod
    def backward(ctx,g): return g
a=L(1); print(F.apply(Z(1), [a]).requires_grad, G.apply(a)[0].requires_grad)
""",
    torch="False False",
    ours="Tensors in lists, whose gradient would be lost, are an error",
)
def test_tensors_in_lists_do_not_lose_their_gradient() -> None:
    f = function(lambda ctx, g: (g, None))
    refused(
        lambda: f.apply(plain(1), [leaf(1)]),
        "argument 1 of F is a list that holds Tensors which require a gradient",
        GradientBreakError,
    )
    refused(
        lambda: function(lambda ctx, g: g, lambda ctx, x: [x * 1]).apply(leaf(1)),
        "forward of F returns a list of Tensors, which would have no gradient",
        GradientBreakError,
    )
    w = leaf(2)
    refused(
        lambda: function(lambda ctx, g: g, lambda ctx, x: w).apply(leaf(1)),
        "forward of F returns a Tensor, f64[1], that requires a gradient and is not",
        GradientBreakError,
    )


@line(
    "6.27",
    "kept",
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): y=x*1; return y, y
    @staticmethod
    def backward(ctx,g,h): print(g, h); return g+h
class G(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): return x[1:]
    @staticmethod
    def backward(ctx,g): return torch.cat([Z(0), 5*g])
a=L(1,1); o=F.apply(a); print(o[0] is o[1], o[0].output_nr); o[0].sum().backward()
b=a*1; c=G.apply(b); print(c._base is b, n(c)); a.grad=None; c.sum().backward()
print(a.grad)
""",
    torch="True 1 | tensor([0., 0.]) tensor([1., 1.]) | True GBackward | "
    "tensor([0., 5.])",
)
def test_outputs_that_are_the_same_or_views() -> None:
    def twice(ctx: Any, x: Any) -> Any:
        y = x * 1
        return y, y

    a = leaf(1, 1)
    x, y = function(lambda ctx, g, h: g + 10 * h, twice).apply(a)
    assert x is y
    x.sum().backward()
    assert grad(a) == [10, 10]
    rule = function(
        lambda ctx, g: np.concatenate([plain(0), 5 * g]), lambda ctx, x: x[1:]
    )
    b = a * 1
    c = rule.apply(b)
    assert c._base is b
    a.grad = None
    c.sum().backward()
    assert grad(a) == [0, 5]
