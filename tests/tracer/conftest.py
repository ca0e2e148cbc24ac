"""Operators that note what ran, and checks against plain Python."""

import collections
import contextlib
import copy

import pytest

from retrograde.tracer.convert import Operators, convert, operators


class Counting(Operators):
    """Does what Python does, and notes which operators ran."""

    def __init__(self, intercept=None):
        super().__init__(intercept)
        self.seen = collections.Counter()
        self.blocks = []

    def for_stmt(self, iterable, extra_test, body, get, set_, names, live, target):
        self.seen["for"] += 1
        self.blocks.append((names, live, target))
        set_(get())
        super().for_stmt(iterable, extra_test, body, get, set_, names, live, target)
        set_(get())

    def while_stmt(self, test, body, get, set_, names, live):
        self.seen["while"] += 1
        self.blocks.append((names, live, None))
        set_(get())
        super().while_stmt(test, body, get, set_, names, live)
        set_(get())

    def if_stmt(self, condition, body, orelse, get, set_, names, live):
        self.seen["if"] += 1
        self.blocks.append((names, live, None))
        set_(get())
        super().if_stmt(condition, body, orelse, get, set_, names, live)
        set_(get())

    def if_exp(self, *args):
        self.seen["if_exp"] += 1
        return super().if_exp(*args)

    def and_(self, *args):
        self.seen["and"] += 1
        return super().and_(*args)

    def or_(self, *args):
        self.seen["or"] += 1
        return super().or_(*args)

    def not_(self, *args):
        self.seen["not"] += 1
        return super().not_(*args)

    def assert_stmt(self, *args):
        self.seen["assert"] += 1
        return super().assert_stmt(*args)

    def call(self, f, args, kwargs):
        self.seen[getattr(f, "__name__", type(f).__name__)] += 1
        return super().call(f, args, kwargs)


def outcome(f, args, ops=None):
    """Return what a call gives and what it did to its arguments, as text."""
    args = copy.deepcopy(args)
    scope = operators(ops) if ops else contextlib.nullcontext()
    try:
        with scope:
            result = repr(f(*args))
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    return result, repr(args)


def check_agreement(f, *args):
    """Check that a function converts, and that it does the same in converted form."""
    converted = convert(f)
    assert converted is not f
    expected = outcome(f, args)
    assert outcome(converted, args) == expected
    counting = Counting()
    assert outcome(converted, args, counting) == expected
    return counting


def count_loops(f, *args):
    """Return the result of converted code, and how many loops operators ran."""
    ops = Counting()
    with operators(ops):
        result = convert(f)(*args)
    return result, ops.seen["for"]


@pytest.fixture
def agree():
    """Give the check that a function does the same in converted form."""
    return check_agreement


@pytest.fixture
def loops():
    """Give the function that counts the loops of converted code."""
    return count_loops


@pytest.fixture
def counting():
    """Give operators that count what runs."""
    return Counting()
