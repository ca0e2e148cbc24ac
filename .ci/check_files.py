"""Check files for what no formatter sees: their last line, their TOML, their size."""

import sys
import tomllib
from pathlib import Path

LARGEST = 500_000  # bytes; larger data does not belong into the repository
BINARY = {".npz", ".png"}


def problem(path: Path) -> str | None:
    """Say what is wrong with a file, or None."""
    data = path.read_bytes()
    if len(data) > LARGEST:
        return f"{len(data)} bytes; at most {LARGEST} may be committed"
    if path.suffix in BINARY or not data:
        return None
    if not data.endswith(b"\n") or data.endswith(b"\n\n"):
        return "does not end with exactly one newline"
    if path.suffix == ".toml":
        try:
            tomllib.loads(data.decode())
        except tomllib.TOMLDecodeError as error:
            return f"not TOML: {error}"
    return None


def main(names: list[str]) -> int:
    """Print one line per bad file and return the exit status."""
    files = [Path(n) for n in names if Path(n).is_file()]
    bad = [(path, text) for path in files if (text := problem(path))]
    for path, text in bad:
        print(f"{path}: {text}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
