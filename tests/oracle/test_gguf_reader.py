"""The GGUF reader (through gguf_dump) against the reference reader (PyPI gguf) on the demo model."""

import re

from gguf import GGUFReader
from oracle import MODEL, finish, report, run

TENSOR = re.compile(r'^(?P<name>\S+)\s+(?P<type>\w+)\s+\[(?P<ne>[\d, ]+)\] (?P<size>\d+) bytes at (?P<offset>\d+)$')
SCALAR = re.compile(r'^(?P<key>\S+) (?P<type>\w+) = (?P<value>.*)$')
ARRAY = re.compile(r'^(?P<key>\S+) \w+\[(?P<n>\d+)\] = ')


def dumped():
    tensors, scalars, arrays = {}, {}, {}
    for line in run("tools/gguf_dump", MODEL).decode().splitlines()[1:]:
        if match := TENSOR.match(line):
            ne = tuple(int(d) for d in match["ne"].split(","))
            tensors[match["name"]] = (match["type"], ne, int(match["size"]), int(match["offset"]))
        elif match := ARRAY.match(line):
            arrays[match["key"]] = int(match["n"])
        elif match := SCALAR.match(line):
            scalars[match["key"]] = match["value"]
    return tensors, scalars, arrays


def agrees(value, shown):
    if isinstance(value, bool):
        return shown == str(value).lower()
    if isinstance(value, float):
        return abs(float(shown) - value) <= 1e-5 * abs(value)
    if isinstance(value, int):
        return shown == str(value)
    return "\\x" in shown or shown.strip('."')[:50] == value[: len(shown.strip('."'))][:50]


def main():
    reader = GGUFReader(MODEL)
    tensors, scalars, arrays = dumped()
    expected = {
        t.name: (t.tensor_type.name, tuple(int(d) for d in t.shape), int(t.n_bytes), int(t.data_offset)) for t in reader.tensors
    }
    wrong = [f"{name}: {tensors.get(name)}, expected {want}" for name, want in expected.items() if tensors.get(name) != want]
    report(f"{len(expected)} tensors", expected and not wrong and len(tensors) == len(expected), *wrong[:10])

    fields = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    wrong = [k for k, v in fields.items() if isinstance(v, list) and arrays.get(k) != len(v)]
    wrong += [f"{k}: {scalars.get(k)}" for k, v in fields.items() if not isinstance(v, list) and not agrees(v, scalars.get(k, ""))]
    report(f"{len(fields)} keys", fields and not wrong and len(scalars) + len(arrays) == len(fields), *wrong[:10])
    finish()


main()
