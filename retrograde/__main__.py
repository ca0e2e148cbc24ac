"""The command line: `python -m retrograde`."""

import argparse
import inspect
import os
import sys
from collections.abc import Sequence

from .target import Target, UsageError, find

BAD_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0 right, 1 wrong, 2 bad usage.

    >>> main(["compare", "missing.py:f"])
    2
    """
    options = _parser().parse_args(argv)
    try:
        return int(options.run(options))
    except UsageError as error:
        print(f"retrograde: {error}", file=sys.stderr)
        return BAD_USAGE
    except BrokenPipeError:  # the reader has seen enough: `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="retrograde", description=_summary())
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="compare and train five example programs")
    demo.add_argument(
        "--explain", metavar="NAME", help="also show how NAME and its gradient compile"
    )
    demo.add_argument("--quick", action="store_true", help="smaller arrays")
    demo.set_defaults(run=_demo)

    for name, run, text in (
        ("compare", _compare, "compare NumPy, eager mode and compiled code"),
        ("explain", _explain, "show how a function and its gradient compile"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("target", metavar="FILE.py:FUNCTION")
        command.add_argument(
            "--args",
            metavar="FILE.npz",
            help="arrays named like the parameters; default: FUNCTION_args() in FILE",
        )
        command.set_defaults(run=run)
        if name == "compare":
            command.add_argument(
                "--device",
                metavar="NAME",
                help="also compare code for a device: cuda, cuda:1 or cuda:emu",
            )
        if name == "explain":
            command.add_argument(
                "--direct",
                action="store_true",
                help="of a plain call, without the gradient",
            )
            command.add_argument(
                "--every", action="store_true", help="also between the main stages"
            )

    cache = commands.add_parser("cache", help="look at or empty the disk cache")
    cache.add_argument("action", choices=["info", "clear"])
    cache.set_defaults(run=_cache)

    doctor = commands.add_parser("doctor", help="show versions and what was found")
    doctor.set_defaults(run=_doctor)
    return parser


def _summary() -> str:
    import retrograde

    return (retrograde.__doc__ or "").splitlines()[0]


def _demo(options: argparse.Namespace) -> int:
    from . import demo

    names = [example.name for example in demo.EXAMPLES]
    if options.explain is not None and options.explain not in names:
        known = ", ".join(names)
        raise UsageError(f"no demo program {options.explain}; there are {known}")
    return 0 if demo.run(quick=options.quick, explain=options.explain) else 1


def _compare(options: argparse.Namespace) -> int:
    from .compare import compare
    from .ir.errors import DeviceError

    target = find(options.target, options.args)
    _check_arguments(target)
    try:
        comparison = compare(
            target.function, *target.args, device=options.device, **target.kwargs
        )
    except DeviceError as error:
        raise UsageError(str(error)) from error
    print(comparison)
    return 0 if comparison.ok else 1


def _explain(options: argparse.Namespace) -> int:
    from .explain import explain

    target = find(options.target, options.args)
    _check_arguments(target)
    try:
        text = explain(
            target.function,
            target.args,
            target.kwargs,
            every=options.every,
            direct=options.direct,
        )
    except Exception as error:  # of the program, or of its compilation
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(text)
    return 0


def _check_arguments(target: Target) -> None:
    try:
        inspect.signature(target.function).bind(*target.args, **target.kwargs)
    except TypeError as error:
        name = getattr(target.function, "__name__", "the function")
        raise UsageError(f"the arguments do not fit {name}: {error}") from error


def _cache(options: argparse.Namespace) -> int:
    from .runtime import cache, env

    if reason := cache.trouble():
        print(f"{cache.location()} is not used: {reason}", file=sys.stderr)
        return 1
    if options.action == "clear":
        print(f"{cache.location()}: {cache.clear()} files removed")
        return 0
    held = cache.info()
    limit = env.cache_limit() >> 20
    most = f" of at most {limit} MiB" if limit else ""
    print(
        f"{cache.location()}: {held.entries} files, {held.bytes / 2**20:.1f} MiB{most}"
    )
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from .runtime import doctor

    print(doctor.report())
    return 0


if __name__ == "__main__":
    sys.exit(main())
