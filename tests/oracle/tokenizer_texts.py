"""Texts for the tokenizer oracles, and the ids that the program under test gives them."""

import os
import subprocess
from pathlib import Path

from oracle import BUILD, ROOT

DATA = Path(os.environ.get("ATSI_TEST_DATA", ROOT.parent / "shared"))
SAMPLES = [
    "Hello  world 123",
    "I've we'LL DON'T it\u2019s 'quoted' x's\n",
    "camelCaseWord HTTPServer \u01c5abc \u00c9t\u00e9",
    "  indent\n\t\ttabs \r\n\r\n   \n trailing   ",
    "1234567890 3.14 \u0663\u0664\u00b2\u00bd\u2167 12,345",
    "e\u0301 n\u0303o \u0e01\u0e33 \u0915\u094d\u0937 \u05e9\u05c1\u0323",
    "\u4f60\u597d\u4e16\u754c\u3002\u30ab\u30bf\u30ab\u30ca \ud55c\uad6d\uc5b4 \u3042",
    "\U0001f600\u200d\U0001f680 \u00a0\u3000\u2003\u0085\u180e\u200b\ufeffx",
    "!@#$%^&*()_+{}|:\"<>?[]\\;',./`~ \u00a1\u00bf\u2026\u20ac\n/\n",
    "a\x00b\x0b\x0c\x1f\x7f",
    "'\u017f \u212a 'S",
]


def random_character(rng, unicode) -> str:
    """Any character that is assigned in a version of Unicode, the common ones more often."""
    ranges = [(32, 127), (32, 33), (9, 14), (48, 58), (65, 123), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x590),
              (0x590, 0x2000), (0x2000, 0x3000), (0x3000, 0x3100), (0x4E00, 0xA000), (0xA000, 0xD7FF),
              (0xF900, 0x10000), (0x10000, 0x20000), (0x20000, 0x30000)]
    while True:
        character = chr(rng.randrange(*rng.choice(ranges)))
        if unicode.category(character) not in ("Cn", "Cs"):
            return character


def random_text(rng, unicode) -> str:
    words = ["the", " quick", "Fox", "'s", "'RE", "  ", "\n\n", " 12", "345", "é", "e\u0301", "!?", " //", "\t"]
    return "".join(rng.choice(words) if rng.random() < 0.4 else random_character(rng, unicode) for _ in range(rng.randint(1, 30)))


def our_ids(model: Path, all_texts) -> list:
    lines = "".join(text.encode().hex() + "\n" for text in all_texts)
    done = subprocess.run([BUILD / "tools" / "tokenize", model], input=lines, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        raise SystemExit(f"tokenize {model}: {done.stderr}")
    return [[int(id) for id in line.split()] for line in done.stdout.split("\n")[:-1]]
