"""Families that have no published tiny model: random models against a forward pass in NumPy (families_numpy.py)."""

import numpy as np
from families_numpy import VOCAB, Ernie, ErnieMoe, Glm4Moe, MiniMaxM2, Mistral3, Mixtral, Phi3, Qwen2Moe, SeedOss, random_tensors, write_model
from oracle import WORK, finish, report, run

BOUND = 5e-4  # float32 sums in another order
FAMILIES = {
    "mixtral": Mixtral(), "qwen2moe": Qwen2Moe(), "glm4moe": Glm4Moe(), "phi3, long factors": Phi3(256), "phi3, short factors": Phi3(2048),
    "seed_oss": SeedOss(), "ernie4_5": Ernie(), "ernie4_5-moe": ErnieMoe(), "minimax-m2": MiniMaxM2(), "mistral3": Mistral3(),
}  # fmt: skip


def logits(model, ids):
    plan, tokens, out = WORK / "family.atsp", WORK / "family.ids", WORK / "family.logits"
    run("atsi-plan", model, "-o", plan, "--ctx", 2048, "--vram", 0, "--kv-type", "f32", "--quiet")
    tokens.write_text(" ".join(map(str, ids)))
    run("atsi-run", plan, "--tokens-in", tokens, "--logits", out, "-n", 0, "--device", "cpu", "--quiet")
    return np.fromfile(out, "<f4").reshape(len(ids), VOCAB)


def main():
    ids = [(i * 37 + 11) % VOCAB for i in range(160)]
    for seed, (name, family) in enumerate(FAMILIES.items()):
        tensors = random_tensors(family, seed)
        model = WORK / "family.gguf"
        write_model(model, family, tensors)
        wanted = family.forward({k: v.astype(np.float64) for k, v in tensors.items()}, ids)
        worst = float(np.abs(logits(model, ids) - wanted).max())
        report(name, worst < BOUND, f"largest difference {worst:.1e} of logits with a deviation of {wanted.std():.2f}")
    finish()


if __name__ == "__main__":
    main()
