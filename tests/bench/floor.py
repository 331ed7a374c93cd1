#!/usr/bin/env python3
"""What one decoded token cannot be faster than: max(R / HBM, N / (CPU + link)), docs/measuring.md rule 5.

    atsi-plan MODEL --explain --json ... | floor.py POSITION CONTEXT USED/EXPERTS HBM CPU LINK [FOUND]

R and N are the bytes that one token reads of units on the card and on the host: whole matrices, the used share of expert
tensors, the filled share of a cache; of the embedding one row, which is nothing. Where experts are resident one by one, FOUND % of
those that a run chose were found on the card and read there. Rates in GB/s, CPU and link together.
Prints `R_GB N_GB floor_ms`."""
import json
import sys


def bytes_read(unit, position, context, used):
    name = unit["name"]
    if name == "token_embd":
        return 0
    if name.endswith("_exps"):
        return unit["gpu_bytes"] * used
    if name.endswith(".attention"):
        return unit["gpu_bytes"] * min(1.0, position / context)
    return unit["gpu_bytes"]


def single_share(plan, n_experts):
    """Of the layers with experts on the host, the part whose experts are resident one by one."""
    layers = {unit["name"].split(".")[1] for unit in plan["units"] if unit["side"] == "cpu" and unit["name"].endswith("_exps")}
    return min(1.0, plan.get("experts", {"n_of": 0})["n_of"] / (n_experts * len(layers))) if layers else 0.0


def main():
    position, context = float(sys.argv[1]), float(sys.argv[2])
    n_used, n_experts = map(float, sys.argv[3].split("/"))
    hbm, cpu, link = (float(rate) * 1e9 for rate in sys.argv[4:7])
    plan = json.loads(sys.stdin.readline())
    found = float(sys.argv[7]) / 100 * single_share(plan, n_experts) if len(sys.argv) > 7 else 0.0
    read = {"gpu": 0.0, "cpu": 0.0}
    for unit in plan["units"]:
        n_bytes = bytes_read(unit, position, context, n_used / n_experts)
        on_card = found if unit["side"] == "cpu" and unit["name"].endswith("_exps") else 0.0
        read[unit["side"]] += (1 - on_card) * n_bytes
        read["gpu"] += on_card * n_bytes
    floor_s = max(read["gpu"] / hbm, read["cpu"] / (cpu + link))
    print(f"{read['gpu'] / 1e9:.3f} {read['cpu'] / 1e9:.3f} {floor_s * 1e3:.2f}")


main()
