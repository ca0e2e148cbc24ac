"""The text form of the IR: `show` prints a Func, `parse` reads it back byte for byte.

func @f(%x: f64[n]) -> f64[n] where n - 2 >= 0 {
  %y: f64[n] = for i in 1..n carry(%c: f64[n] = %x) {
    %p: f64[] = select %c, i - 1 {axis=0}
    %d: f64[n] = select_scatter %c, %p, i {axis=0}
    yield %d
  }
  return %y
}
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from . import dims
from .dims import Expr, Facts, Symbol
from .errors import IRError
from .func import Block, Func, Node, Operand, Value, custom_parts, type_of
from .op import OPS, Kind, Op
from .types import NAMES, SHORT, Type

# ---------------------------------------------------------------- printing


def show(f: Func, *, loc: bool = False) -> str:
    """Print a Func; with `loc`, every line names the user's file and line."""
    head = f"{f.stage} @{f.name}"
    if f.symbols:
        head += f"[{', '.join(s.name for s in f.symbols)}]"
    head += f"({', '.join(map(show_param, f.params))}) -> {_result_types(f)}"
    if f.facts.known:
        head += " where " + ", ".join(f"{e} >= 0" for e in f.facts.known)
    lines = [head + " {"]
    lines += _lines(f.body, "  ", loc)
    lines.append(_end("return", f.results, "  "))
    return "\n".join([*lines, "}"])


def _result_types(f: Func) -> str:
    types = [str(type_of(r)) for r in f.results]
    for i, j in f.updates:
        types[i] += f" into %{f.params[j].name}"
    return types[0] if len(types) == 1 else f"({', '.join(types)})"


def show_param(p: Value) -> str:
    return f"%{p.name}: {p.type}"


def show_operand(x: Operand) -> str:
    if isinstance(x, Value):
        return f"%{x.name}"
    return show_attr(x)


def show_attr(a: Any) -> str:
    """Print a literal, dim, dtype, string or tuple of them."""
    if isinstance(a, tuple):
        inner = ", ".join(map(show_attr, a))
        return f"({inner},)" if len(a) == 1 else f"({inner})"
    if isinstance(a, np.dtype):
        return SHORT[a]
    if isinstance(a, Expr):
        return str(a)
    if isinstance(a, Symbol):
        return a.name
    if isinstance(a, complex):  # Python's own form loses the signs of zeros
        return f"complex({a.real!r}, {a.imag!r})"
    return repr(a)


def show_node(node: Node, *, loc: bool = False) -> str:
    """Print the first line of a node."""
    return next(_node_lines(node, "", loc))


def _lines(block: Block, indent: str, loc: bool) -> list[str]:
    return [line for n in block.nodes for line in _node_lines(n, indent, loc)]


def _end(word: str, results: Sequence[Operand], indent: str) -> str:
    return f"{indent}{word} {', '.join(map(show_operand, results))}".rstrip()


def _node_lines(node: Node, indent: str, loc: bool) -> Iterator[str]:
    comment = f"  # {node.loc.file}:{node.loc.line}" if loc and node.loc else ""
    if node.op.kind is Kind.WRITE:
        target, new = map(show_operand, node.operands)
        yield f"{indent}{target} <- {new}{comment}"
        return
    left = ", ".join(show_param(v) + _mark(v) for v in node.results)
    left = f"{indent}{left} = " if left else indent
    right, ends = _control_head(node) if node.regions else (_plain(node), ())
    if not node.regions:
        yield left + right + comment
        return
    yield f"{left}{right} {{{comment}"
    inner = indent + "  "
    for k, region in enumerate(node.regions):
        yield from _lines(region, inner, loc)
        yield _end(ends[k], region.results, inner)
        if node.op.kind is Kind.COND and k == 0:
            yield f"{indent}}} else {{"
    yield f"{indent}}}"


def _mark(v: Value) -> str:
    if v.base is not None:
        return f" &%{v.base.name}"
    return f" !%{v.reuses.name}" if v.reuses is not None else ""


def _plain(node: Node) -> str:
    text = node.op.name
    if node.operands:
        text += " " + ", ".join(map(show_operand, node.operands))
    return text + _attrs_text(node.attrs)


def _attrs_text(attrs: Any, skip: Sequence[str] = ()) -> str:
    shown = [f"{k}={show_attr(a)}" for k, a in sorted(attrs.items()) if k not in skip]
    return f" {{{', '.join(shown)}}}" if shown else ""


def _control_head(node: Node) -> tuple[str, tuple[str, ...]]:
    name = node.op.name
    match node.op.kind:
        case Kind.FOR:
            a = node.attrs
            text = f"{name} {show_attr(a['index'])} in {a['start']}..{a['stop']}"
            if a["step"] != 1:
                text += f" step {a['step']}"
            extra = _attrs_text(a, ("index", "start", "stop", "step"))
            return text + _carries(node) + extra, ("yield",)
        case Kind.WHILE:
            return name + _carries(node) + _attrs_text(node.attrs), ("test", "yield")
        case Kind.COND:
            return f"{name} {show_operand(node.operands[0])}", ("yield", "yield")
        case Kind.CUSTOM:
            inputs, values = custom_parts(node)
            text = ", ".join(map(show_operand, values))
            if inputs:
                text += f" of {', '.join(map(show_operand, inputs))}"
            params = ", ".join(map(show_param, node.regions[0].params))
            return f"{name} {text} params({params})", ("yield",)
        case _:
            return name + _attrs_text(node.attrs), ("yield",)


def _carries(node: Node) -> str:
    params = node.regions[0].params
    if not params:
        return ""
    pairs = zip(params, node.operands, strict=True)
    return (
        f" carry({', '.join(f'{show_param(p)} = {show_operand(x)}' for p, x in pairs)})"
    )


# ---------------------------------------------------------------- reading

_OPEN, _CLOSE = "([{", ")]}"


_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")


def _blanked(text: str) -> str:
    """Return `text` with quoted strings overwritten, so that positions stay."""
    return _QUOTED.sub(lambda m: "_" * len(m[0]), text)


def split(text: str, separator: str = ",") -> list[str]:
    """Split at separators outside brackets and quotes; the parts are stripped."""
    parts, depth, start = [], 0, 0
    blanked = _blanked(text)
    for k, c in enumerate(blanked):
        if c in _OPEN:
            depth += 1
        elif c in _CLOSE:
            depth -= 1
        elif depth == 0 and blanked.startswith(separator, k):
            parts.append(text[start:k].strip())
            start = k + len(separator)
    parts.append(text[start:].strip())
    return [] if parts == [""] else parts


def parse_type(text: str) -> Type:
    """Read a type.

    >>> parse_type("f32[n,3]"), parse_type("i64"), parse_type("~f64")
    (f32[n,3], i64, ~f64)
    """
    m = re.fullmatch(r"(~?)(\w+)(\[(.*)\])?", text.strip())
    if not m or m[2] not in NAMES:
        raise IRError(f"{text!r} is not a type")
    dtype = NAMES[m[2]]
    if m[1]:
        return Type(dtype, weak=True)
    if m[3] is None:
        return Type(dtype, scalar=True)
    return Type(dtype, tuple(dims.parse_dim(d) for d in split(m[4])))


_HEAD = re.compile(r"(traced|func) @([\w.<>]+)(?:\[([\w, ]*)\])?\((.*)$")
_FOR = re.compile(r"(\w+) (\w+) in (.+)$")


class _Reader:
    def __init__(self, text: str) -> None:
        rows = enumerate(text.splitlines(), 1)
        stripped = ((k, _strip_comment(row)) for k, row in rows)
        self.lines = [(k, row) for k, row in stripped if row]
        self.at = 0
        self.env: dict[str, Value] = {}

    def fail(self, message: str) -> IRError:
        k, row = self.lines[min(self.at, len(self.lines) - 1)]
        return IRError(f"{message}\n  line {k}: {row}")

    def line(self) -> str:
        if self.at >= len(self.lines):
            raise self.fail("the text ends inside a function")
        return self.lines[self.at][1]

    def func(self) -> Func:
        m = _HEAD.match(self.line())
        if not m:
            raise self.fail("a function header is expected")
        stage, name, symbols, rest = m.groups()
        close = _closing(rest)
        params = tuple(self.define(p) for p in split(rest[:close]))
        tail = rest[close + 1 :].removesuffix("{").strip()
        declared, _, where = tail.removeprefix("->").partition(" where ")
        facts = tuple(self.fact(w) for w in split(where))
        self.at += 1
        nodes, _, results = self.block(("return",))
        f = Func(
            name,
            stage,
            Block(params, nodes, results),
            tuple(Symbol(s.strip()) for s in split(symbols or "")),
            Facts(facts),
            self.updates(declared, params),
        )
        if _result_types(f) != declared.strip():
            self.at -= 1
            raise self.fail(f"the results are {_result_types(f)}")
        return f

    def updates(
        self, declared: str, params: Sequence[Value]
    ) -> tuple[tuple[int, int], ...]:
        text = declared.strip()
        many = text.startswith("(")
        names = [p.name for p in params]
        out = []
        for i, part in enumerate(split(text[1:-1]) if many else [text]):
            _, into, name = part.partition(" into %")
            if into and name not in names:
                raise self.fail(f"%{name} is not a parameter")
            if into:
                out.append((i, names.index(name)))
        return tuple(out)

    def fact(self, text: str) -> Expr:
        left, arrow, right = text.partition(">=")
        fact = dims.parse_dim(left) if arrow and right.strip() == "0" else 0
        if not isinstance(fact, Expr):
            raise self.fail(f"{text!r} is not a fact of the form `dim >= 0`")
        return fact

    def define(self, text: str) -> Value:
        name, colon, rest = text.partition(":")
        name = name.strip()
        if not name.startswith("%") or not colon:
            raise self.fail(f"{text!r} is not a definition")
        m = re.fullmatch(r"(.*?)(?: ([&!])%([\w.]+))?", rest.strip())
        assert m is not None
        if name[1:] in self.env:
            raise self.fail(f"{name} is defined twice")
        v = Value(name[1:], self.typed(m[1]))
        if m[2]:
            setattr(v, "base" if m[2] == "&" else "reuses", self.lookup(m[3]))
        self.env[v.name] = v
        return v

    def typed(self, text: str) -> Type:
        try:
            return parse_type(text)
        except IRError as error:
            raise self.fail(str(error)) from None

    def lookup(self, name: str) -> Value:
        if name not in self.env:
            raise self.fail(f"%{name} is used before it is defined")
        return self.env[name]

    def operand(self, text: str) -> Operand:
        if text.startswith("%"):
            return self.lookup(text[1:])
        value = self.attr(text)
        if not isinstance(value, int | float | complex | Expr):
            raise self.fail(f"{text!r} is not an operand")
        return value

    def attr(self, text: str) -> Any:
        try:
            return _literal(ast.parse(text, mode="eval").body, text)
        except (SyntaxError, IRError):
            raise self.fail(f"{text!r} is not a value") from None

    def attrs(self, text: str) -> dict[str, Any]:
        pairs = (part.partition("=") for part in split(text))
        return {k.strip(): self.attr(v.strip()) for k, _, v in pairs}

    def block(self, ends: tuple[str, ...]) -> tuple[tuple[Node, ...], str, Any]:
        """Read nodes up to a line that starts with one of `ends`."""
        nodes: list[Node] = []
        while True:
            row = self.line()
            word, _, rest = row.partition(" ")
            if word in ends:
                results = tuple(self.operand(x) for x in split(rest))
                self.at += 1
                return tuple(nodes), word, results
            nodes.append(self.node(row))

    def expect(self, row: str) -> None:
        if self.line() != row:
            raise self.fail(f"{row!r} is expected")
        self.at += 1

    def node(self, row: str) -> Node:
        halves = split(row, " <- ")
        if len(halves) == 2:
            operands = tuple(self.operand(x) for x in halves)
            node = Node(self.op("write"), operands)
        elif row.endswith("{") and not row.endswith("}"):
            return self.control(row)
        else:
            left, right = self.sides(row)
            node = self.plain(left, right)
        self.at += 1
        return node

    def sides(self, row: str) -> tuple[str, str]:
        if not row.startswith("%"):
            return "", row
        parts = split(row, " = ")
        if len(parts) < 2:
            raise self.fail("a definition is expected")
        return parts[0], row[row.index(parts[0]) + len(parts[0]) :].strip()[2:]

    def op(self, name: str) -> Op:
        if name not in OPS:
            raise self.fail(f"unknown op {name!r}")
        return OPS[name]

    def plain(self, left: str, right: str) -> Node:
        name, _, rest = right.partition(" ")
        op = self.op(name)
        rest, attrs = self.trailing_attrs(rest)
        operands = tuple(self.operand(x) for x in split(rest))
        results = tuple(self.define(d) for d in split(left))
        return Node(op, operands, attrs, results)

    def trailing_attrs(self, text: str) -> tuple[str, dict[str, Any]]:
        text = text.strip()
        if not text.endswith("}"):
            return text, {}
        start = text.find("{")
        if start < 0:
            raise self.fail("'{' is missing")
        return text[:start].strip(), self.attrs(text[start + 1 : -1])

    def control(self, row: str) -> Node:
        left, right = self.sides(row.removesuffix("{").strip())
        head, attrs = self.trailing_attrs(right)
        name = head.split(" ")[0]
        op = self.op(name)
        if op.kind is Kind.CUSTOM:
            return self.custom(op, left, head)
        head, inits, params = self.carries(head)
        regions: tuple[Block, ...]
        operands: tuple[Operand, ...] = inits
        if op.kind is Kind.FOR:
            attrs |= self.range(head)
        if op.kind is Kind.COND:
            operands = (self.operand(head.removeprefix(name).strip()),)
        self.at += 1
        if op.kind is Kind.WHILE:
            nodes, _, results = self.block(("test",))
            test = Block(params, nodes, results)
            nodes, _, results = self.block(("yield",))
            regions = (test, Block((), nodes, results))
        else:
            nodes, _, results = self.block(("yield",))
            regions = (Block(params, nodes, results),)
        if op.kind is Kind.COND:
            self.expect("} else {")
            nodes, _, results = self.block(("yield",))
            regions = (*regions, Block((), nodes, results))
        self.expect("}")
        return Node(op, operands, attrs, tuple(map(self.define, split(left))), regions)

    def custom(self, op: Op, left: str, head: str) -> Node:
        head, _, params = head.removesuffix(")").partition(" params(")
        values, _, inputs = head.partition(" ")[2].partition(" of ")
        operands = [*split(inputs), *split(values)]
        given = tuple(map(self.operand, operands))
        own = tuple(map(self.define, split(params)))
        self.at += 1
        nodes, _, results = self.block(("yield",))
        self.expect("}")
        rule = Block(own, nodes, results)
        made = tuple(map(self.define, split(left)))
        return Node(op, given, {}, made, (rule,))

    def carries(self, head: str) -> tuple[str, Any, Any]:
        start = head.find(" carry(")
        if start < 0:
            return head, (), ()
        inits, params = [], []
        for part in split(head[start + 7 : -1]):
            definition, init = split(part, " = ")
            inits.append(self.operand(init))
            params.append(definition)
        return head[:start], tuple(inits), tuple(map(self.define, params))

    def range(self, head: str) -> dict[str, Any]:
        m = _FOR.match(head)
        if not m:
            raise self.fail("`for INDEX in START..STOP` is expected")
        bounds, _, step = m[3].partition(" step ")
        start, dots, stop = bounds.partition("..")
        if not dots:
            raise self.fail("`for INDEX in START..STOP` is expected")
        return {
            "index": dims.symbol(m[2]),
            "start": dims.parse_dim(start),
            "stop": dims.parse_dim(stop),
            "step": dims.parse_dim(step or "1"),
        }


def _strip_comment(row: str) -> str:
    comment = re.search(r"(^|\s)#", _blanked(row))
    return row[: comment.start()].strip() if comment else row.strip()


def _closing(text: str) -> int:
    depth = 0
    for k, c in enumerate(text):
        if c in _OPEN:
            depth += 1
        elif c in _CLOSE:
            if depth == 0:
                return k
            depth -= 1
    raise IRError(f"unbalanced brackets in {text!r}")


def _literal(tree: ast.expr, text: str) -> Any:
    match tree:
        case ast.Constant(value=value):
            return value
        case ast.Tuple(elts=elts):
            return tuple(_literal(x, text) for x in elts)
        case ast.Name(id="inf" | "nan" as name):
            return float(name)
        case ast.Name(id=name) if name in NAMES:
            return NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=x):
            value = _literal(x, text)
            return -value
        case ast.Call(func=ast.Name(id="complex"), args=[real, imag]):
            return complex(_literal(real, text), _literal(imag, text))
    return dims.parse_dim(ast.unparse(tree))


def parse(text: str) -> Func:
    """Read one Func from text; raises IRError that quotes the guilty line.

    >>> print(parse("func @f(%x: f64[n]) -> f64[n] {\\n  return %x\\n}"))
    func @f(%x: f64[n]) -> f64[n] {
      return %x
    }
    """
    reader = _Reader(text)
    if not reader.lines:
        raise IRError("no function in the text")
    try:
        return reader.func()
    except (ValueError, AssertionError) as error:
        if isinstance(error, IRError):
            raise
        raise reader.fail(str(error)) from error


__all__ = ["parse", "parse_type", "show", "show_node"]
