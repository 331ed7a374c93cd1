#!/usr/bin/env python3
"""What one decoded token cannot be faster than: max(R / HBM, N / (CPU + link)), docs/measuring.md rule 5.

    atsi-plan MODEL --explain --json ... | floor.py POSITION CONTEXT USED/EXPERTS HBM CPU LINK

R and N are the bytes that one token reads of units on the card and on the host: whole matrices, the used share of expert
tensors, the filled share of a cache; of the embedding one row, which is nothing. Rates in GB/s, CPU and link together.
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


def main():
    position, context = float(sys.argv[1]), float(sys.argv[2])
    n_used, n_experts = map(float, sys.argv[3].split("/"))
    hbm, cpu, link = (float(rate) * 1e9 for rate in sys.argv[4:7])
    read = {"gpu": 0.0, "cpu": 0.0}
    for unit in json.loads(sys.stdin.readline())["units"]:
        read[unit["side"]] += bytes_read(unit, position, context, n_used / n_experts)
    floor_s = max(read["gpu"] / hbm, read["cpu"] / (cpu + link))
    print(f"{read['gpu'] / 1e9:.3f} {read['cpu'] / 1e9:.3f} {floor_s * 1e3:.2f}")


main()
