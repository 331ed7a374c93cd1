"""A byte-level BPE vocabulary: training, encoding, and the printable spelling that GGUF stores."""

from collections import Counter, defaultdict

import regex

# How the pre-tokenizer named "qwen2" splits text into words; no merge crosses a border.
WORDS = regex.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte: itself where printable, else U+0100 and on, in byte order."""
    printable = set(range(0x21, 0x7F)) | set(range(0xA1, 0xAD)) | set(range(0xAE, 0x100))
    alphabet, spare = [], 0x100
    for byte in range(256):
        if byte in printable:
            alphabet.append(chr(byte))
        else:
            alphabet.append(chr(spare))
            spare += 1
    return alphabet


class Vocabulary:
    """Ids 0..255 are the bytes, then one id a merge; `merges[i]` is the pair of ids that became id 256 + i."""

    def __init__(self, merges: list[tuple[int, int]]):
        self.merges = merges
        self.rank = {pair: i for i, pair in enumerate(merges)}
        self.bytes = [bytes([b]) for b in range(256)]
        for left, right in merges:
            self.bytes.append(self.bytes[left] + self.bytes[right])
        self._cache: dict[str, list[int]] = {}

    def spelling(self, token: int) -> str:
        alphabet = byte_alphabet()
        return "".join(alphabet[b] for b in self.bytes[token])

    def encode_word(self, word: str) -> list[int]:
        ids = list(word.encode("utf-8"))
        while len(ids) > 1:
            best = min(range(len(ids) - 1), key=lambda i: self.rank.get((ids[i], ids[i + 1]), len(self.rank)))
            merged = self.rank.get((ids[best], ids[best + 1]))
            if merged is None:
                break
            ids[best : best + 2] = [256 + merged]
        return ids

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in WORDS.findall(text):
            if word not in self._cache:
                self._cache[word] = self.encode_word(word)
            ids += self._cache[word]
        return ids

    def decode(self, ids: list[int]) -> str:
        return b"".join(self.bytes[i] for i in ids).decode("utf-8", errors="replace")


def train(text: str, n_merges: int) -> Vocabulary:
    """Merges the most frequent pair, ties to the smaller ids, until n_merges are made."""
    counts = Counter(WORDS.findall(text))
    words = [list(w.encode("utf-8")) for w in counts]
    weights = list(counts.values())
    pair_count: Counter = Counter()
    where = defaultdict(set)
    for w, ids in enumerate(words):
        for pair in zip(ids, ids[1:]):
            pair_count[pair] += weights[w]
            where[pair].add(w)
    merges: list[tuple[int, int]] = []
    for new_id in range(256, 256 + n_merges):
        pair = max(pair_count, key=lambda p: (pair_count[p], -p[0], -p[1]))
        merges.append(pair)
        for w in where.pop(pair):
            replace_in_word(words, weights[w], w, pair, new_id, pair_count, where)
        del pair_count[pair]
    return Vocabulary(merges)


def replace_in_word(words, weight, w, pair, new_id, pair_count, where) -> None:
    """Replaces every `pair` in word w and keeps the pair counts in step."""
    old = words[w]
    new, i = [], 0
    while i < len(old):
        if i + 1 < len(old) and (old[i], old[i + 1]) == pair:
            new.append(new_id)
            i += 2
        else:
            new.append(old[i])
            i += 1
    for p in zip(old, old[1:]):
        pair_count[p] -= weight
    for p in zip(new, new[1:]):
        pair_count[p] += weight
        where[p].add(w)
    words[w] = new
