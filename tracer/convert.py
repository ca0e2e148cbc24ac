"""Run Python functions so that control flow and calls go through operators.

`convert(f)` gives a function with the signature, defaults, globals and cells of `f`, in
which every `for`, `while`, `if`, conditional expression, `and`, `or`, `not`, chained
comparison, `assert` and call is a call of the `Operators` in force (`with
operators(...)`). The plain ones do what Python does and convert what is called in turn.
The same converted code serves all operators; it is made once per code object.

Facts:

- What is called is converted when it is a Python function, method, partial, callable
  object or class with a Python `__init__` or `__new__`, and its source can be found.
  Functions of the standard library, of installed packages (a `site-packages` or
  `dist-packages` folder) and of this package run as they are, and so does code without
  source (`exec`, a prompt) or whose file changed since it was imported: arrays that
  such code creates are plain NumPy arrays.
- Implicit calls do not pass through `call`: operators and other special methods of the
  user's classes, properties, `__enter__`/`__exit__`, the application of a decorator,
  the body of a `class` statement, the `__init__` that `dataclass` generates. They run
  as they are; what they call runs as it is, too.
- Functions handed to `map`, `filter`, `sorted`, `min`, `max`, `list.sort`,
  `functools.reduce` and their relatives in `itertools` are converted on the way;
  functions handed to other compiled code run as they are, unless they are defined
  inside converted code: those are converted where they stand.
- Generators, coroutines, functions that call `locals()`, `vars()`, `dir()`, `eval(s)`
  or `exec(s)`, and functions that leave a `finally` by `return`, `break` or `continue`
  have their calls and expressions converted, but their statements stay Python's;
  `limitation()` then gives the reason. A conditional operand that contains `:=`,
  `yield` or `await` stays Python's too.
- A list or generator comprehension over one iterable, without conditions, is an
  operator too; others stay comprehensions, with the calls and logic in them converted.
- Exceptions are the user's own, and tracebacks show the user's lines, since the code is
  compiled for the user's file. Frames of this module stand between them.
- Reading an unbound local from inside a block raises NameError where Python raises its
  subclass UnboundLocalError.
- A call takes more frames than in Python, so the recursion limit is raised while
  operators are set with `operators`.
- What looks at its callers' frames (`sys._getframe`, `inspect.stack`, the module that
  `namedtuple` takes for its own) sees frames of ours; `warnings.warn` does not. `eval`
  and its like see the user's frame when they are called by their own name.
- A wrapper of `functools.lru_cache` or `singledispatch` is compiled or library code:
  what it wraps runs as it is.
"""

import builtins
import contextlib
import dataclasses
import functools
import inspect
import itertools
import operator
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    MethodType,
)
from typing import Any, cast

from ..ir.errors import ConversionError, Location
from .location import is_ours, is_user_code, user_frame, user_location
from .lowering import SUPPORT
from .rewrite import ITEM, OPS, PREFIX, THUNK, rewrite
from .scopes import FRAME_BUILTINS, shadowed_builtins
from .source import compile_function, find_source
from .support import NAMESPACE, RECURSION

Thunk = Callable[[], Any]


class Operators:
    """The plain meaning of control flow and calls: what Python does.

    Subclasses override what they trace. `names` are the variables and attributes
    (`self.x`) that a block binds, in the order of `get_state()` and
    `set_state(values)`; a value may be `Undefined`, and setting that unbinds the name.
    `live` are those of `names` whose value may be read after the block or in its next
    iteration. Names that begin with `rg__` are ours: `rg__return` and `rg__value` hold
    an early return, `rg__break_*` and `rg__continue_*` a jump.

    `intercept` maps callables, by identity, to what is called in their place.
    """

    def __init__(
        self, intercept: Mapping[Any, Callable[..., Any]] | None = None
    ) -> None:
        self._targets = list(intercept or ())  # keeps the identities alive
        self._intercept = {id(f): g for f, g in (intercept or {}).items()}

    def for_stmt(
        self,
        iterable: Iterable[Any],
        extra_test: Callable[[], Any] | None,
        body: Callable[[Any], None],
        get_state: Callable[[], tuple[Any, ...]],
        set_state: Callable[[tuple[Any, ...]], None],
        names: tuple[str, ...],
        live: tuple[str, ...],
        target: str,
    ) -> None:
        """Run `body(item)` for the items, while `extra_test()` holds after each."""
        for item in iterable:
            body(item)
            if extra_test is not None and not extra_test():
                break

    def each(self, count: Any, body: Callable[[Any], None]) -> None:
        """Run `body(i)` for i in `range(count)`: a loop in code of this package."""
        for i in range(count):
            body(i)

    def while_stmt(
        self,
        test: Callable[[], Any],
        body: Callable[[], None],
        get_state: Callable[[], tuple[Any, ...]],
        set_state: Callable[[tuple[Any, ...]], None],
        names: tuple[str, ...],
        live: tuple[str, ...],
    ) -> None:
        """Run `body()` while `test()` holds."""
        while test():
            body()

    def if_stmt(
        self,
        condition: Any,
        body: Callable[[], None],
        orelse: Callable[[], None],
        get_state: Callable[[], tuple[Any, ...]],
        set_state: Callable[[tuple[Any, ...]], None],
        names: tuple[str, ...],
        live: tuple[str, ...],
    ) -> None:
        """Run one of two blocks."""
        if condition:
            body()
        else:
            orelse()

    def if_exp(self, condition: Any, body: Thunk, orelse: Thunk) -> Any:
        """Return `body() if condition else orelse()`."""
        return body() if condition else orelse()

    def list_comp(self, iterable: Iterable[Any], element: Callable[[Any], Any]) -> Any:
        """Return `[element(item) for item in iterable]`."""
        return [element(item) for item in iterable]

    def generator(self, iterable: Iterable[Any], element: Callable[[Any], Any]) -> Any:
        """Return `(element(item) for item in iterable)`."""
        return (element(item) for item in iterable)

    def and_(self, left: Any, right: Thunk) -> Any:
        """Return `left and right()`."""
        return left and right()

    def or_(self, left: Any, right: Thunk) -> Any:
        """Return `left or right()`."""
        return left or right()

    def not_(self, value: Any) -> Any:
        """Return `not value`."""
        return not value

    def chain(
        self, left: Any, comparisons: tuple[str, ...], rest: tuple[Thunk, ...]
    ) -> Any:
        """Return `left < rest[0]() < rest[1]() ...`, through `and_`."""
        right = rest[0]()
        result = COMPARISONS[comparisons[0]](left, right)
        if len(rest) == 1:
            return result
        return self.and_(result, lambda: self.chain(right, comparisons[1:], rest[1:]))

    def assert_stmt(self, condition: Any, message: Thunk | None) -> None:
        """Raise AssertionError unless the condition holds."""
        if not condition:
            raise AssertionError(message()) if message else AssertionError()

    def call(self, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call what stands in for `f`, or the converted `f`."""
        special = self._intercept.get(id(f))
        if special is not None:
            return special(*args, **kwargs)
        kind = type(f)
        if kind is FunctionType or kind is MethodType:
            return _converted(f)(*args, **kwargs)
        if kind is functools.partial:
            return self.call(f.func, f.args + args, {**f.keywords, **kwargs})
        if kind is BuiltinFunctionType or id(f) in _TAKES_FUNCTIONS:
            args, kwargs = self._for_builtin(f, args, kwargs)
            return f(*args, **kwargs)
        if isinstance(f, type):
            return _construct(f, args, kwargs)
        return _converted(f)(*args, **kwargs)

    def _for_builtin(
        self, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Prepare the arguments of builtins that call functions or look at frames."""
        place = _TAKES_FUNCTIONS.get(id(f))
        if place is None and f.__name__ == "sort" and isinstance(f.__self__, list):
            place = _BY_KEYWORD
        if place is not None:
            args = tuple(
                self.callback(a) if i == place else a for i, a in enumerate(args)
            )
            kwargs = {
                k: self.callback(v) if k in ("key", "func") else v
                for k, v in kwargs.items()
            }
        elif id(f) in _FRAME_BUILTINS:
            _refuse_frame_builtin(f, args, kwargs)
        elif f is warnings.warn:
            args, kwargs = _user_stacklevel(*args, **kwargs)
        return args, kwargs

    def callback(self, f: Any) -> Any:
        """Return what to hand to plain code that will call `f`."""
        special = self._intercept.get(id(f))
        if special is not None:
            return special
        return _converted(f) if callable(f) else f


COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "is": operator.is_,
    "is not": operator.is_not,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}

_BY_KEYWORD = -1
_TAKES_FUNCTIONS = {
    **{id(f): _BY_KEYWORD for f in (sorted, min, max)},
    **{id(f): 0 for f in (map, filter, functools.reduce, itertools.starmap)},
    **{id(f): 0 for f in (itertools.takewhile, itertools.dropwhile)},
    **{id(f): 0 for f in (itertools.filterfalse,)},
    **{id(f): 1 for f in (itertools.accumulate, itertools.groupby)},
}
_FRAME_BUILTINS = {id(getattr(builtins, name)): name for name in FRAME_BUILTINS}


def _refuse_frame_builtin(
    f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    name = _FRAME_BUILTINS[id(f)]
    if name in ("eval", "exec"):
        refused = (*args, None)[1] is None
    else:
        refused = len(args) + len(kwargs) < FRAME_BUILTINS[name]
    if refused and name != "breakpoint":
        raise ConversionError(
            f"{name}: reached through another name",
            location=user_location(),
            rule=f"{name}() looks at the frame that calls it, which is not yours here.",
            hint=f"call it by its own name, `{name}(...)`",
        )


def _user_stacklevel(
    message: Any,
    category: Any = None,
    stacklevel: int = 1,
    source: Any = None,
    **kwargs: Any,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Let `warnings.warn` count the user's calls, not the frames that stand between."""
    frame: FrameType | None = sys._getframe(2)  # the one that calls `warn`
    level = innermost = found = 0
    while frame is not None and stacklevel > 0:
        level += 1
        if not is_ours(frame.f_code, frame.f_globals):
            # The blocks of a function come first, the innermost has the line.
            innermost = innermost or level
            if id(frame.f_code) not in _BLOCKS:
                stacklevel -= 1
                found, innermost = innermost, 0
        frame = frame.f_back
    return (message, category, found + max(stacklevel, 0), source), kwargs


_PLAIN = Operators()
_ACTIVE: ContextVar[Operators] = ContextVar("retrograde_operators", default=_PLAIN)


def active_operators() -> Operators:
    """Return the operators that converted code uses in this thread or context."""
    return _ACTIVE.get()


@contextlib.contextmanager
def operators(ops: Operators) -> Iterator[Operators]:
    """Let converted code use the given operators, in this thread or context.

    >>> class Loud(Operators):
    ...     def for_stmt(self, iterable, *rest):
    ...         print("a loop")
    ...         super().for_stmt(iterable, *rest)
    >>> def total(xs):
    ...     s = 0
    ...     for x in xs:
    ...         s += x
    ...     return s
    >>> with operators(Loud()):
    ...     convert(total)([1, 2, 3])
    a loop
    6
    """
    token = _ACTIVE.set(ops)
    RECURSION.enter()
    try:
        yield ops
    finally:
        RECURSION.leave()
        _ACTIVE.reset(token)


_CELLS = {OPS: CellType(_ACTIVE.get), SUPPORT: CellType(NAMESPACE)}


# --------------------------------------------------------------------------- the cache


# Keys are identities of code objects; an entry dies with the code that it was made for.
_ENTRIES: dict[int, "_Entry"] = {}
_CONVERTED: set[int] = set()
_BLOCKS: set[int] = set()
_LIMITS: dict[int, str] = {}
_LOCK = threading.RLock()


class _Entry:
    """What conversion made of one code object: `code` is None where it stays plain."""

    __slots__ = ("cells", "code", "members", "original", "reason")

    def __init__(self, original: CodeType) -> None:
        self.original = weakref.ref(original, self._forget)
        self.code: CodeType | None = None
        self.cells: tuple[int | CellType, ...] = ()
        self.members: list[int] = [id(original)]
        self.reason: str | None = None

    def _forget(
        self,
        _: object,
        # Bound here, since module globals are gone when the interpreter ends.
        tables: tuple[Any, ...] = (_ENTRIES, _LIMITS, _CONVERTED, _BLOCKS),
    ) -> None:
        entries, limits, *marks = tables
        for member in self.members:
            entries.pop(member, None)
            limits.pop(member, None)
            for mark in marks:
                mark.discard(member)

    def instantiate(self, f: FunctionType) -> FunctionType:
        """Return a converted function over the cells, defaults and globals of `f`."""
        code = self.code
        if code is None:
            return f
        own = f.__closure__ or ()
        closure = tuple(own[c] if type(c) is int else c for c in self.cells)
        new = FunctionType(
            code, f.__globals__, f.__name__, f.__defaults__, cast(Any, closure)
        )
        new.__kwdefaults__ = f.__kwdefaults__
        new.__qualname__ = f.__qualname__  # generators take theirs from it
        return new


def _entry_of(f: FunctionType) -> _Entry | None:
    """Return the entry for a function, or None for one that is already converted."""
    key = id(f.__code__)
    entry = _ENTRIES.get(key)
    if entry is not None or key in _CONVERTED:
        return entry
    with _LOCK:
        entry = _ENTRIES.get(key)
        if entry is None and key not in _CONVERTED:
            entry = _make_entry(f)
            _ENTRIES[key] = entry
        return entry


_AWAITABLE = inspect.CO_ITERABLE_COROUTINE  # what `types.coroutine` sets


def _make_entry(f: FunctionType) -> _Entry:
    original = f.__code__
    entry = _Entry(original)
    if not is_user_code(original, f.__globals__):
        entry.reason = "it belongs to the standard library or to an installed package"
        return entry
    source = find_source(original, f.__globals__)
    if source is None:
        entry.reason = "its source is not available"
        return entry
    _check_names(original)
    rebound = shadowed_builtins(original.co_freevars, f.__globals__)
    rewritten = rewrite(source.node, rebound)
    source = dataclasses.replace(source, node=rewritten.node)
    freevars = (OPS, SUPPORT, *original.co_freevars)
    code = compile_function(source, freevars, original)
    code = _rename(code, original.co_name, original.co_qualname)
    code = code.replace(co_flags=code.co_flags | original.co_flags & _AWAITABLE)
    places = {name: i for i, name in enumerate(original.co_freevars)}
    entry.cells = tuple(
        _CELLS[n] if n in _CELLS else places[n] for n in code.co_freevars
    )
    entry.code = code
    for member, parent in _functions_in(code):
        entry.members.append(id(member))
        _CONVERTED.add(id(member))
        if parent is not None and parent.co_qualname == member.co_qualname:
            _BLOCKS.add(id(member))
        reason = rewritten.limits.get((member.co_name, member.co_firstlineno))
        if reason:
            _LIMITS[id(member)] = reason
    return entry


def _check_names(code: CodeType) -> None:
    used = (*code.co_varnames, *code.co_names, *code.co_freevars, *code.co_cellvars)
    for name in used:
        if name.startswith(PREFIX):
            raise ConversionError(
                f"{code.co_name}: the name {name!r} is reserved",
                location=Location(code.co_filename, code.co_firstlineno, code.co_name),
                rule=f"Names that begin with {PREFIX} belong to converted code.",
                hint="rename it",
            )
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            _check_names(inner)


def _rename(code: CodeType, name: str, qualname: str) -> CodeType:
    """Give code its place in the user's program; blocks take their function's name."""
    constants: list[Any] = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            ours = constant.co_name.startswith(PREFIX) or _is_thunk(constant)
            if ours:
                constant = _rename(constant, name, qualname)
            else:
                inner = place = constant.co_name
                if constant.co_qualname != inner:  # else declared global
                    middle = ".<locals>." if _is_function(code) else "."
                    place = qualname + middle + inner
                constant = _rename(constant, inner, place)
        elif constant == code.co_qualname and not _is_function(code):
            constant = qualname  # what the class body assigns to __qualname__
        constants.append(constant)
    return code.replace(co_name=name, co_qualname=qualname, co_consts=tuple(constants))


def _is_thunk(code: CodeType) -> bool:
    return code.co_varnames[:1] in ((THUNK,), (ITEM,))


def _is_function(code: CodeType) -> bool:
    return bool(code.co_flags & 0x2)  # CO_NEWLOCALS: class bodies lack it


def _functions_in(
    code: CodeType, parent: CodeType | None = None
) -> Iterator[tuple[CodeType, CodeType | None]]:
    """Yield code and the code in it with what it stands in, but for classes.

    Methods of classes are converted when they are called.
    """
    yield code, parent
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and _is_function(constant):
            yield from _functions_in(constant, code)


# ----------------------------------------------------------------------------- convert


def convert(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return `f` in converted form, or `f` itself where it has to stay plain.

    The result shares defaults, globals and closure cells with `f`. Methods, partials,
    static and class methods, classes and callable objects are taken as well.

    >>> def clip(x, low=0):
    ...     return low if x < low else x
    >>> convert(clip)(-3)
    0
    """
    new = _converted(f)
    if isinstance(f, FunctionType) and new is not f:
        functools.update_wrapper(new, f)
        del new.__wrapped__
        new.__type_params__ = getattr(f, "__type_params__", ())
    return cast(Callable[..., Any], new)


def _converted(f: Any) -> Any:
    """Return a converted `f` without its attributes: all that a call needs."""
    if isinstance(f, FunctionType):
        entry = _entry_of(f)
        return f if entry is None else entry.instantiate(f)
    if isinstance(f, MethodType):
        function = _converted(f.__func__)
        return f if function is f.__func__ else MethodType(function, f.__self__)
    if type(f) is functools.partial:
        return functools.partial(_converted(f.func), *f.args, **f.keywords)
    if isinstance(f, staticmethod | classmethod):
        return type(f)(_converted(f.__func__))
    if isinstance(f, type):
        return functools.partial(_make, f) if _constructors(f) else f
    call = getattr(type(f), "__call__", None)  # noqa: B004 (not whether, but which)
    if isinstance(call, FunctionType):
        function = _converted(call)
        return f if function is call else MethodType(function, f)
    if not callable(f):
        raise TypeError(f"{type(f).__name__!r} object is not callable")
    return f


def _constructors(cls: type) -> bool:
    """Tell whether making an object of a class runs Python code of the user's."""
    if type(cls).__call__ is not type.__call__:
        return False
    return any(
        isinstance(f, FunctionType)
        and _entry_of(f) is not None
        and is_user_code(f.__code__, f.__globals__)
        for f in (cls.__new__, cls.__init__)  # type: ignore[misc]
    )


def _make(cls: type, *args: Any, **kwargs: Any) -> Any:
    return _construct(cls, args, kwargs)


def _construct(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do what calling a class does, with `__new__` and `__init__` converted."""
    if not _constructors(cls):
        return cls(*args, **kwargs)
    made = _converted(cls.__new__)(cls, *args, **kwargs)
    if isinstance(made, cls):
        result = _converted(type(made).__init__)(made, *args, **kwargs)
        if result is not None:
            kind = type(result).__name__
            raise TypeError(f"__init__() should return None, not {kind!r}")
    return made


def limitation() -> str | None:
    """Return why the statements of the running user function are not converted.

    None stands for a function that is converted in full.
    """
    frame = user_frame()
    if frame is None:
        return None
    key = id(frame.f_code)
    if key in _CONVERTED:
        return _LIMITS.get(key)
    entry = _ENTRIES.get(key)
    if entry is not None and entry.reason:
        return entry.reason
    return "it was called by code that is not converted"
