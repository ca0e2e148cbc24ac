"""A function in its plain and its compiled form, its arguments, and direct calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import retrograde as rg

from .leaves import Leaf, is_array, is_float, leaves, rebuild, shares_memory
from .runtime.devices import DeviceArray, packages
from .runtime.devices import device as find_device
from .tracer.jit import Compiled

if TYPE_CHECKING:
    from .comparison import Mode


@dataclass(frozen=True, slots=True)
class Program:
    """A function in its forms, with the arguments and what to differentiate.

    With a `device` there is a form that is compiled for it, too.
    """

    name: str
    plain: Callable[..., Any]
    compiled: Callable[..., Any]
    args: tuple[Any, ...]
    names: tuple[str, ...]
    argnums: tuple[int, ...]
    device: str | None = None
    on_device: Callable[..., Any] | None = None

    @property
    def forms(self) -> dict[Mode, Callable[..., Any]]:
        """The function as each mode runs it."""
        forms: dict[Mode, Callable[..., Any]] = {
            "eager": self.plain,
            "compiled": self.compiled,
        }
        if self.on_device is not None:
            forms["device"] = self.on_device
        return forms

    def paths(self, args: tuple[Any, ...]) -> Iterator[Leaf]:
        """Yield the leaves of arguments with paths that start at parameter names."""
        for name, arg in zip(self.names, args, strict=True):
            yield from leaves(arg, name)


@dataclass(frozen=True, slots=True)
class Call:
    """What one direct call did."""

    value: Any
    values: list[Leaf]
    finals: list[Leaf]  # arrays only
    aliases: frozenset[tuple[str, str]]


def make_program(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    argnums: int | tuple[int, ...] | None,
    device: str | None = None,
) -> Program:
    """Find the plain function, name its arguments and check what to differentiate.

    Raises DeviceError where there is no such device, or no compiler for it.
    """
    compiled = f if hasattr(f, "cache_info") and hasattr(f, "source") else None
    if isinstance(compiled, Compiled) and compiled.options.device is not None:
        device = device or compiled.options.device
        compiled = Compiled(compiled.fn, compiled.options._replace(device=None))
    plain = f if compiled is None else getattr(f, "__wrapped__", None)
    if plain is None:
        raise TypeError(
            "compare: pass the function itself, not a transform of a compiled function"
        )
    names, args, rest = _bind(plain, args, kwargs)
    name = getattr(plain, "__name__", str(plain))
    if rest:
        plain, compiled = _with_keywords(plain, rest), None
    args = rebuild(args, to_numpy)
    floats = tuple(
        i
        for i, arg in enumerate(args)
        if any(is_float(leaf) for _, leaf in leaves(arg))
    )
    if argnums is None:
        argnums = floats
    elif isinstance(argnums, int):
        argnums = (argnums,)
    for i in argnums:
        if not -len(args) <= i < len(args):
            raise IndexError(
                f"argnums: there is no argument {i}; the call has {len(args)} "
                "positional arguments"
            )
    argnums = tuple(range(len(args))[i] for i in argnums)
    for i in argnums:
        if i not in floats:
            raise TypeError(f"compare: argument {names[i]} holds no floats")
    compiled = compiled or rg.compile(plain)
    on_device = None
    if device is not None:
        device = find_device(device).name
        packages.numba_cuda()  # one error now, not one for each check
        on_device = rg.compile(compiled, device=device)
    return Program(name, plain, compiled, args, names, argnums, device, on_device)


def _bind(
    plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[str, ...], tuple[Any, ...], dict[str, Any]]:
    """Make arguments positional where the signature allows it, and name them."""
    bound = inspect.signature(plain).bind(*args, **kwargs)
    if kwargs:
        bound.apply_defaults()
    names: list[str] = []
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            extra = len(bound.arguments.get(parameter.name, ()))
            names += [f"{parameter.name}[{i}]" for i in range(extra)]
        elif parameter.kind is not parameter.KEYWORD_ONLY:
            names.append(parameter.name)
    return tuple(names[: len(bound.args)]), bound.args, bound.kwargs


def _with_keywords(
    plain: Callable[..., Any], rest: dict[str, Any]
) -> Callable[..., Any]:
    def bound(*args: Any) -> Any:
        return plain(*args, **rest)

    return bound


def to_numpy(leaf: Any) -> Any:
    """Return the array of a tensor, or one of a device; anything else as it is."""
    if isinstance(leaf, DeviceArray):
        return leaf.numpy()
    return leaf.detach().numpy() if isinstance(leaf, rg.Tensor) else leaf


def run_direct(
    program: Program, target: Callable[..., Any], args: tuple[Any, ...]
) -> Call:
    """Call a function and note what it returned, changed and aliased."""
    value = rebuild(target(*args), to_numpy)
    finals = list(program.paths(rebuild(args, to_numpy)))
    values = list(leaves(value, "result"))
    aliases = {
        (name, path)
        for i, (name, leaf) in enumerate(values)
        for path, other in finals + values[:i]
        if shares_memory(leaf, other)
    }
    finals = [(path, leaf) for path, leaf in finals if is_array(leaf)]
    return Call(value, values, finals, frozenset(aliases))
