"""The table of passes, the pipelines, and what runs, verifies and blames them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from ..ir.errors import InternalError, IRError, RetrogradeError
from ..ir.func import Func
from ..ir.text import show
from ..ir.verify import verify as check
from .cancel import cancel
from .chains import chains
from .cse import cse
from .dce import dce
from .dots import dots
from .functionalize import functionalize
from .fuse import fuse
from .inline import inline
from .joins import joins
from .jvp import jvp
from .partition import partition
from .parts import parts
from .reinplace import reinplace
from .results import results
from .rows import rows
from .shifts import shifts
from .simplify import simplify
from .sweeps import sweeps
from .unnest import unnest
from .vectorize import vectorize
from .vjp import vjp

Pass: TypeAlias = Callable[[Func], Func]


def joint(f: Func) -> Func:
    """Differentiate the first result of `f` in all its float parameters."""
    return vjp(f, [j for j, p in enumerate(f.params) if p.type.is_inexact], [0])


def pushed(f: Func) -> Func:
    """Differentiate `f` forward in all its float parameters."""
    return jvp(f, [j for j, p in enumerate(f.params) if p.type.is_inexact])


def pullback(f: Func) -> Func:
    """Return the backward part of the joint Func of the first result of `f`."""
    return partition(joint(f), len(f.results), 1)[1]


# Every pass under its name. Passes with arguments stand here in a usual form.
PASSES: dict[str, Pass] = {
    "functionalize": functionalize,
    "chains": chains,
    "vectorize": vectorize,
    "vjp": joint,
    "jvp": pushed,
    "simplify": simplify,
    "cse": cse,
    "dce": dce,
    "partition": pullback,
    "dots": dots,
    "sweeps": sweeps,
    "joins": joins,
    "shifts": shifts,
    "unnest": unnest,
    "cancel": cancel,
    "parts": parts,
    "results": results,
    "fuse": fuse,
    "rows": rows,
    "inline": inline,
    "reinplace": reinplace,
}

# What runs in which order; `vjp` and `partition` are given with their arguments.
PIPELINES: dict[str, tuple[str, ...]] = {
    "pure": ("functionalize", "simplify", "cse", "dce"),
    "optimize": ("simplify", "cse", "chains", "dce"),
    "lower": (
        "results",
        "dots",
        "sweeps",
        "joins",
        "shifts",
        "unnest",
        "cancel",
        "parts",
        "fuse",
        "rows",
        "inline",
        "reinplace",
    ),
}


def run(
    f: Func,
    names: Sequence[str],
    *,
    verify: bool = False,
    dump: Callable[[str, Func], None] | None = None,
    extra: Mapping[str, Pass] | None = None,
) -> Func:
    """Run passes by name, in order.

    `extra` adds passes under names of their own, such as a `vjp` with its arguments.
    `dump` is called with the name of each pass and its result. With `verify` the Func
    is checked before the first and after every pass, unless it has been already.

    Raises InternalError that names the guilty pass; errors of the user's program, such
    as UnsupportedError, pass through.
    """
    table = {**PASSES, **(extra or {})}
    if verify:
        _verify(f, "input", ())
    for k, name in enumerate(names):
        done = tuple(names[:k])
        try:
            after = table[name](f)
        except RetrogradeError as error:
            if _is_for_the_user(error):
                raise
            raise _blame(name, done, f, error) from error
        except Exception as error:
            raise _blame(name, done, f, error) from error
        if dump is not None:
            dump(name, after)
        if verify:
            _verify(after, name, done)
        f = after
    return f


def _is_for_the_user(error: RetrogradeError) -> bool:
    return not isinstance(error, IRError | InternalError)


def _verify(f: Func, name: str, done: Sequence[str]) -> None:
    if f.verified:
        return
    try:
        check(f)
    except RetrogradeError as error:
        raise _blame(name, done, f, error) from error


def _blame(
    name: str, done: Sequence[str], f: Func, error: BaseException
) -> InternalError:
    after = f" (after {', '.join(done)})" if done else ""
    what = f"pass {name!r}{after}: {type(error).__name__}: {error}"
    return InternalError(
        f"{what}\n{show(f)}",
        rule="this is a defect of retrograde, not of the program.",
        hint="reproduce with RETROGRADE_VERIFY=1 RETROGRADE_DUMP=all, "
        f"or run {[*done, name]} with retrograde.passes.manager.run on the dumped IR",
    )
