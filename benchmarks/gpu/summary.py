"""What a check of a GPU has found, as text; and whether the goals are met."""

from collections.abc import Iterator, Sequence

from .records import Record

GOAL = 0.9  # of the bandwidth of a copy
GOALS = ("fused_map", "softmax", "layer_norm")
LARGE = 1 << 26  # elements
Results = dict[str, list[Record]]
Times = dict[tuple[str, int], dict[str, float]]


def times_of(records: Sequence[Record]) -> Times:
    """Return seconds by framework, of each program and size."""
    found: Times = {}
    for r in records:
        if "seconds" in r and r.get("what") == "time":
            key = r["program"], r["size"]
            found.setdefault(key, {})[r["framework"]] = r["seconds"]
    return found


def best(times: dict[str, float]) -> tuple[str, float] | None:
    """Return the fastest peer."""
    peers = {k: v for k, v in times.items() if k not in ("ours", "copy")}
    return min(peers.items(), key=lambda pair: pair[1]) if peers else None


def table(times: Times) -> Iterator[str]:
    """Yield a line per program and size."""
    yield (
        f"{'program':16} {'elements':>10} {'ours us':>10} {'of copy':>8} "
        f"{'best peer us':>13} {'peer/ours':>9}"
    )
    for (program, size), found in sorted(times.items()):
        ours, peer = found.get("ours"), best(found)
        share = f"{found['copy'] / ours:.0%}" if ours and "copy" in found else "-"
        line = f"{program:16} {size:10} {_us(ours):>10} {share:>8} "
        line += f"{_us(peer[1] if peer else None):>13} "
        line += f"{peer[1] / ours:9.2f} {peer[0]}" if peer and ours else f"{'-':>9}"
        yield line


def _us(seconds: float | None) -> str:
    return f"{1e6 * seconds:.1f}" if seconds else "-"


def goals(times: Times) -> Iterator[tuple[str, bool]]:
    """Yield each goal that has been measured, and whether it is met."""
    for program in GOALS:
        found = times.get((program, LARGE), {})
        if "ours" in found and "copy" in found:
            share = found["copy"] / found["ours"]
            yield (
                f"{program} at 2^26: {share:.0%} of the copy bandwidth (goal "
                f"{GOAL:.0%})",
                share >= GOAL,
            )
    for (program, size), found in sorted(times.items()):
        peer = best(found)
        if peer and "ours" in found and peer[1] < found["ours"]:
            ratio = found["ours"] / peer[1]
            text = f"{program} at {size}: {peer[0]} is {ratio:.2f} times as fast"
            yield text, False


def problems(results: Results) -> Iterator[str]:
    """Yield what went wrong, of all parts."""
    for part, records in results.items():
        for r in records:
            name = r.get("name") or r.get("program") or r.get("what")
            where = f"{part}, {r.get('framework', '')} {name}".replace(",  ", ", ")
            for text in r.get("bad", ()):
                yield f"{where}: {text}"
            if "error" in r:
                last = (r.get("output") or [""])[-1]
                size = f" at {r['size']}" if "size" in r else ""
                yield f"{where}{size}: {r['error']} {last}".rstrip()


def lines(results: Results) -> Iterator[str]:
    """Yield the whole summary."""
    checks = [r for r in results.get("correctness", []) if r.get("what") == "check"]
    if checks:
        right = sum(not r["bad"] and "unsupported" not in r for r in checks)
        left = [r["name"] for r in checks if "unsupported" in r]
        runs = sum(r["runs"] for r in checks)
        yield f"correctness: {right} of {len(checks)} programs right in {runs} runs"
        yield from (f"  not supported: {name}" for name in left)
    for r in results.get("recording", []):
        if r.get("what") == "compilation":
            yield (
                f"first call of {r['name']}: {r['first']:.2f} s for {r['kernels']} "
                "kernels"
            )
        if r.get("what") == "host":
            yield from (f"{k}: {v:.2f} us" for k, v in r["microseconds"].items())
    for r in results.get("sanitizer", []):
        yield f"{r['what']}: {r.get('verdict', '')}"
    times = times_of(results.get("speed", []))
    if times:
        yield from table(times)
        yield from (f"{'met' if ok else 'MISSED':7}{g}" for g, ok in goals(times))
    found = list(problems(results))
    yield from (f"problem: {text}" for text in found)
    yield "no problems" if not found else f"{len(found)} problems"
