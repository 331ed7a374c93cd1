"""A second reader of plan files, written from docs/plan-format.md alone; it shares nothing with the one in formats/."""

import json
from dataclasses import dataclass

import xxhash
import zstandard

MAGIC = bytes.fromhex("89415453500D0A1A")
PARTS = ("manifest", "index", "tokenizer", "resident", "pinned")
ELEMENT_BYTES = {0: 4, 1: 2, 30: 2}  # F32, F16, BF16: the types that are split into byte planes
FRAME_LIMIT = 4 << 20


class Damaged(Exception):
    """The file is not what the specification allows."""


@dataclass
class Tensor:
    name: str
    dtype: int
    layout: int
    ne: tuple
    raw_bytes: int
    section: str
    encoding: int
    stored: bytes


def u32(data, offset):
    return int.from_bytes(data[offset : offset + 4], "little")


def u64(data, offset):
    return int.from_bytes(data[offset : offset + 8], "little")


def need(good, what):
    if not good:
        raise Damaged(what)


def checksum(data):
    return xxhash.xxh3_64_intdigest(data)


def join_planes(content, element_bytes):
    n = len(content) // element_bytes
    out = bytearray(len(content))
    for k in range(element_bytes):
        out[k::element_bytes] = content[k * n : (k + 1) * n]
    return bytes(out)


def unpack(tensor):
    """The packed tensor as it lies in memory."""
    if tensor.encoding == 0:
        return tensor.stored
    element_bytes = ELEMENT_BYTES.get(tensor.dtype, 1) if tensor.encoding == 2 else 1
    out, rest = [], tensor.stored
    while rest:
        size = zstandard.frame_content_size(rest)
        need(0 < size <= FRAME_LIMIT, f"{tensor.name}: frame of {size} bytes")
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        content = decompressor.decompress(rest)
        need(len(content) == size, f"{tensor.name}: frame content")
        rest = decompressor.unused_data
        out.append(join_planes(content, element_bytes))
    return b"".join(out)


class Plan:
    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        data = self.data
        need(data[:8] == MAGIC, "magic")
        need(u32(data, 8) == 1, "version")
        need(u64(data, 4088) == checksum(data[:4088]), "header checksum")
        need(u64(data, 16) == len(data), "file size")
        self.flags = u32(data, 12)
        self.alignment = u64(data, 24)
        self.ranges = {name: tuple(u64(data, 64 + 32 * p + 8 * k) for k in range(4)) for p, name in enumerate(PARTS)}
        self._check_ranges()
        self.manifest = json.loads(self._manifest())
        self.tensors = [self._tensor(i) for i in range(u32(data, 32))]
        self.tokenizer = self._part("tokenizer")

    def _part(self, name):
        offset, stored, _, _ = self.ranges[name]
        return self.data[offset : offset + stored]

    def _check_ranges(self):
        end = 4096
        for name, (offset, stored, raw, digest) in sorted(self.ranges.items(), key=lambda item: item[1]):
            if stored == 0:
                need((offset, raw, digest) == (0, 0, 0), f"{name}: empty part")
                continue
            in_section = name in ("resident", "pinned")
            need(offset >= end and offset % (self.alignment if in_section else 64) == 0, f"{name}: offset")
            end = offset + stored
            need(end <= len(self.data), f"{name}: end")
            need(digest == (0 if in_section else checksum(self._part(name))), f"{name}: checksum")

    def _manifest(self):
        text = zstandard.ZstdDecompressor().decompress(self._part("manifest"))
        need(len(text) == self.ranges["manifest"][2], "manifest size")
        return text

    def _tensor(self, i):
        r = self._part("index")[160 * i : 160 * (i + 1)]
        offset, stored = u64(r, 136), u64(r, 144)
        section = ("resident", "pinned")[u32(r, 128)]
        data = self.data[offset : offset + stored]
        if self.flags & 1:
            need(offset == stored == u64(r, 152) == 0, "bytes in a plan without weights")
        else:
            start, size, _, _ = self.ranges[section]
            need(offset % 64 == 0 and start <= offset and offset + stored <= start + size, "tensor range")
            need(u64(r, 152) == checksum(data), "tensor checksum")
        name = r[:80].rstrip(b"\0").decode()
        ne = tuple(u64(r, 88 + 8 * d) for d in range(4))
        return Tensor(name, u32(r, 80), u32(r, 84), ne, u64(r, 120), section, u32(r, 132), data)
