"""Reads the novels of the Debian package r-cran-janeaustenr into clean paragraphs.

The package stores six character vectors in R's lazy-load format: records of a big-endian 32-bit length followed by a
zlib stream of a serialised (XDR, version 3) object. Only the one shape that occurs, a vector of strings, is read.
"""

import re
import struct
import zlib
from pathlib import Path

RDB_IN_PACKAGE = "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
END_OF_TEXT = "<|endoftext|>"

STRSXP, CHARSXP = 16, 9
NA_LENGTH = -1

# What stands between the chapters: "CHAPTER XII", "Chapter 1", "VOLUME II" and bare Roman numerals.
HEADING = re.compile(r"^(chapter|volume)\s+([ivxlc]+|\d+)\.?(\s.*)?$|^[IVXLC]+\.?$", re.IGNORECASE)
LAST_LINE = re.compile(r"^(the end|finis|end of volume.*)\.?$", re.IGNORECASE)


def serialised_objects(rdb: bytes):
    """Yields the decompressed records of an .rdb file."""
    pos = 0
    while pos < len(rdb):
        (size,) = struct.unpack_from(">I", rdb, pos)
        stream = zlib.decompressobj()
        data = stream.decompress(rdb[pos + 4 :])
        if len(data) != size:
            raise ValueError(f"record at {pos}: {len(data)} bytes, expected {size}")
        pos = len(rdb) - len(stream.unused_data)
        yield data


def string_vector(data: bytes) -> list[str]:
    """Decodes one serialised character vector."""
    if data[:2] != b"X\n":
        raise ValueError("not an XDR serialisation")
    version, _writer, _oldest = struct.unpack_from(">iii", data, 2)
    if version != 3:
        raise ValueError(f"serialisation version {version}, expected 3")
    (encoding_len,) = struct.unpack_from(">i", data, 14)
    pos = 18 + encoding_len
    flags, count = struct.unpack_from(">ii", data, pos)
    pos += 8
    if flags & 0xFF != STRSXP:
        raise ValueError(f"object type {flags & 0xFF}, expected a character vector")
    lines = []
    for _ in range(count):
        flags, length = struct.unpack_from(">ii", data, pos)
        pos += 8
        if flags & 0xFF != CHARSXP:
            raise ValueError(f"element type {flags & 0xFF}, expected a string")
        if length == NA_LENGTH:
            lines.append("")
            continue
        lines.append(data[pos : pos + length].decode("utf-8"))
        pos += length
    return lines


def clean(text: str) -> str:
    """One paragraph: no emphasis marks, plain quotes and dashes, single spaces."""
    text = text.replace("_", "").replace("\u201c", '"').replace("\u201d", '"')
    text = text.replace("\u2018", "'").replace("\u2019", "'").replace("\u2014", "--")
    return re.sub(r"\s+", " ", text).strip()


def chapters(lines: list[str]) -> list[list[str]]:
    """Splits a novel into chapters of paragraphs. What stands before the first heading (title, author) is dropped."""
    found: list[list[str]] = []
    paragraph: list[str] = []
    for line in lines + [""]:
        line = line.strip()
        if HEADING.match(line):
            found.append([])
            paragraph = []
        elif line:
            paragraph.append(line)
        elif paragraph:
            text = clean(" ".join(paragraph))
            paragraph = []
            if found and text and not LAST_LINE.match(text):
                found[-1].append(text)
    return [c for c in found if c]


def load(root: Path) -> str:
    """The whole corpus from an unpacked package: chapters separated by END_OF_TEXT, paragraphs by an empty line."""
    rdb = (root / RDB_IN_PACKAGE).read_bytes()
    novels = [chapters(string_vector(data)) for data in serialised_objects(rdb)]
    return END_OF_TEXT.join("\n\n".join(c) for novel in novels for c in novel)
