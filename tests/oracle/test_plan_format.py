"""Plans of the demo model read by the second reader: what docs/plan-format.md says is what is written."""

from gguf import GGUFReader
from oracle import MODEL, demo_plan, finish, report
from plan_reader import Plan, unpack

LAYOUT_WORDS = ("plain", "tile16")


def wrong_tensors(plan, source):
    """Tensors that do not agree with the manifest, or whose plain bytes are not those of the GGUF."""
    wrong = []
    program = {t["name"]: t for t in plan.manifest["program"]["tensors"]}
    if set(program) != {t.name for t in plan.tensors}:
        wrong.append("index and program name different tensors")
    for tensor in plan.tensors:
        stated = program[tensor.name]
        shape = (stated["layout"], tuple(stated["ne"]), stated["size_bytes"])
        if shape != (LAYOUT_WORDS[tensor.layout], tensor.ne, tensor.raw_bytes):
            wrong.append(f"{tensor.name}: {shape}")
        if plan.flags & 1:
            continue
        packed = unpack(tensor)
        if len(packed) != tensor.raw_bytes:
            wrong.append(f"{tensor.name}: {len(packed)} bytes, expected {tensor.raw_bytes}")
        original = source.get(tensor.name)
        if original is not None and tensor.layout == 0 and tensor.dtype == original.tensor_type:
            if packed != original.data.tobytes():
                wrong.append(f"{tensor.name}: other bytes than the GGUF has")
    return wrong


def read_by_cpu(program):
    tensors = program["tensors"]
    ops = [op for u in program["units"] if u["backend"] == "cpu" for op in program["ops"][u["first_op"] : u["first_op"] + u["n_ops"]]]
    return {tensors[i]["name"] for op in ops for i in op["tensor"] if i >= 0}


def check_plan(name, source, *options, flags=0):
    plan = Plan(demo_plan(*options))
    report(f"{name}: flags {flags}", plan.flags == flags)
    wrong = wrong_tensors(plan, source)
    report(f"{name}: {len(plan.tensors)} tensors", plan.tensors and not wrong, *wrong[:10])
    mapped = read_by_cpu(plan.manifest["program"])
    misplaced = [t.name for t in plan.tensors if (t.section == "pinned") != (t.name in mapped)]
    report(f"{name}: what a CPU unit reads is pinned", not misplaced, *misplaced[:10])
    report(f"{name}: tokenizer", plan.tokenizer.startswith(b"ATSITOK1"))
    return plan


def main():
    source = {t.name: t for t in GGUFReader(MODEL).tensors}
    plan = check_plan("plan", source)
    report("what is mapped is raw", all(t.encoding == 0 for t in plan.tensors if t.section == "pinned"))
    shipped = check_plan("--ship", source, "--ship", flags=2)
    report("--ship: smaller", len(shipped.data) <= len(plan.data))
    small = check_plan("--no-weights", source, "--no-weights", flags=1)
    report("--no-weights: names the model", small.manifest["model"]["gguf_bytes"] == MODEL.stat().st_size)
    words = Plan(demo_plan("--vocab-only"))
    report("--vocab-only: no tensors", words.manifest["vocab_only"] and not words.tensors)
    finish()


main()
