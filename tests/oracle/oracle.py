"""What the oracle tests share: the programs under test, a plan of the demo model, and TAP lines."""

import atexit
import os
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("B", "build"))
MODEL = ROOT / "plans" / "demo.gguf"

_work = tempfile.TemporaryDirectory()
atexit.register(_work.cleanup)
WORK = Path(_work.name)
_n_tests = 0


def run(program: str, *args) -> bytes:
    """Runs build/PROGRAM and returns its standard output; a failure ends the test with the program's own message."""
    done = subprocess.run([BUILD / program, *map(str, args)], capture_output=True, cwd=ROOT, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise SystemExit(f"{program} {args}: exit status {done.returncode}: {done.stderr.decode(errors='replace')}")
    return done.stdout


def demo_plan(*options) -> Path:
    """A plan of the demo model made with these options, for the CPU alone."""
    plan = WORK / f"demo{len(list(WORK.iterdir()))}.atsp"
    run("atsi-plan", MODEL, "--vram", 0, "-o", plan, *options)
    return plan


def report(name: str, good: bool, *notes) -> None:
    global _n_tests
    _n_tests += 1
    print(f"{'ok' if good else 'not ok'} {_n_tests} - {name}")
    for note in notes:
        print(f"# {note}")


def finish() -> None:
    print(f"1..{_n_tests}", flush=True)
