"""Random models of families that have no published tiny model, and their forward pass in float64 with NumPy, written from
the families' own descriptions. Tensors are a dict of arrays in PyTorch's shapes ([outputs, inputs])."""

import gguf
import numpy as np

EMBD, HEADS, KV_HEADS, DIM, FF, VOCAB, LAYERS = 256, 4, 2, 64, 512, 1024, 3
EXPERTS, USED, FF_EXP, FF_SHARED = 8, 2, 128, 256
EPS = 1e-5


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms_norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


def rotate(x, n_rot, interleaved, divisors=1.0, scale=1.0, base=10000.0):
    """x: [tokens, heads, DIM]; position t is row t."""
    angles = np.arange(len(x))[:, None] * (base ** (-np.arange(0, n_rot, 2) / n_rot) / divisors)
    cos, sin = np.cos(angles)[:, None] * scale, np.sin(angles)[:, None] * scale
    first = np.arange(0, n_rot, 2) if interleaved else np.arange(n_rot // 2)
    second = first + 1 if interleaved else first + n_rot // 2
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def attend(q, k, v):
    n = len(q)
    k, v = (np.repeat(a, HEADS // KV_HEADS, axis=1) for a in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(DIM)
    scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
    return np.einsum("hij,jhd->ihd", softmax(scores), v).reshape(n, -1)


class Family:
    """One family: hyperparameters beyond the common ones, and what its layers do."""

    arch = ""
    keys: dict = {}
    norm_before_ffn = "ffn_norm.weight"
    n_rot, interleaved, biases, qk_norms = DIM, False, False, False
    n_dense = LAYERS  # layers without experts come first

    def layer_tensors(self, i):
        shapes = {"attn_norm.weight": (EMBD,), self.norm_before_ffn: (EMBD,), "attn_output.weight": (EMBD, HEADS * DIM)}
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            shapes[f"attn_{name}.weight"] = (heads * DIM, EMBD)
            if self.biases:
                shapes[f"attn_{name}.bias"] = (heads * DIM,)
            if self.qk_norms and name != "v":
                shapes[f"attn_{name}_norm.weight"] = (DIM,)
        return shapes | (self.dense_tensors() if i < self.n_dense else self.expert_tensors())

    def dense_tensors(self):
        return {"ffn_gate.weight": (FF, EMBD), "ffn_up.weight": (FF, EMBD), "ffn_down.weight": (EMBD, FF)}

    def expert_tensors(self):
        return {
            "ffn_gate_inp.weight": (EXPERTS, EMBD),
            "ffn_gate_exps.weight": (EXPERTS, FF_EXP, EMBD),
            "ffn_up_exps.weight": (EXPERTS, FF_EXP, EMBD),
            "ffn_down_exps.weight": (EXPERTS, EMBD, FF_EXP),
        }

    def shared_tensors(self, width):
        return {"ffn_gate_shexp.weight": (width, EMBD), "ffn_up_shexp.weight": (width, EMBD), "ffn_down_shexp.weight": (EMBD, width)}

    def global_tensors(self):
        return {"token_embd.weight": (VOCAB, EMBD), "output_norm.weight": (EMBD,), "output.weight": (VOCAB, EMBD)}

    def rope(self, x, t):
        return rotate(x, self.n_rot, self.interleaved)

    def qkv(self, h, t, layer):
        out = []
        for name in "qkv":
            y = h @ layer[f"attn_{name}.weight"].T + layer.get(f"attn_{name}.bias", 0)
            y = y.reshape(len(h), -1, DIM)
            if f"attn_{name}_norm.weight" in layer:
                y = rms_norm(y, layer[f"attn_{name}_norm.weight"])
            out.append(y if name == "v" else self.rope(y, t))
        return out

    def dense(self, h, layer, tail=""):
        gate, up = h @ layer[f"ffn_gate{tail}.weight"].T, h @ layer[f"ffn_up{tail}.weight"].T
        return (silu(gate) * up) @ layer[f"ffn_down{tail}.weight"].T

    def route(self, logits, layer):
        """[tokens, EXPERTS] weights, zero for the experts that are not used."""
        p = softmax(logits)
        chosen = np.zeros_like(p)
        np.put_along_axis(chosen, np.argsort(-p, axis=-1)[:, :USED], 1, axis=-1)
        p = p * chosen
        return p / p.sum(-1, keepdims=True)

    def experts(self, h, layer):
        weights = self.route(h @ layer["ffn_gate_inp.weight"].T, layer)
        hidden = silu(np.einsum("efd,td->tef", layer["ffn_gate_exps.weight"], h)) * np.einsum("efd,td->tef", layer["ffn_up_exps.weight"], h)
        return np.einsum("edf,tef,te->td", layer["ffn_down_exps.weight"], hidden, weights)

    def ffn(self, h, layer, i):
        return self.dense(h, layer) if i < self.n_dense else self.experts(h, layer)

    def forward(self, t, ids):
        x = t["token_embd.weight"][ids]
        for i in range(LAYERS):
            prefix = f"blk.{i}."
            layer = {name[len(prefix) :]: a for name, a in t.items() if name.startswith(prefix)}
            q, k, v = self.qkv(rms_norm(x, layer["attn_norm.weight"]), t, layer)
            x = x + attend(q, k, v) @ layer["attn_output.weight"].T
            x = x + self.ffn(rms_norm(x, layer[self.norm_before_ffn]), layer, i)
        return rms_norm(x, t["output_norm.weight"]) @ t["output.weight"].T


class Mixtral(Family):
    arch, interleaved, n_dense = "llama", True, 0
    keys = {"feed_forward_length": FF_EXP, "expert_count": EXPERTS, "expert_used_count": USED}


class Qwen2Moe(Family):
    arch, biases, n_dense = "qwen2moe", True, 0
    keys = {"expert_count": EXPERTS, "expert_used_count": USED, "expert_feed_forward_length": FF_EXP, "expert_shared_feed_forward_length": FF_SHARED}

    def expert_tensors(self):
        return super().expert_tensors() | self.shared_tensors(FF_SHARED) | {"ffn_gate_inp_shexp.weight": (EMBD,)}

    def route(self, logits, layer):  # the chosen keep their share of all experts
        p = softmax(logits)
        chosen = np.zeros_like(p)
        np.put_along_axis(chosen, np.argsort(-p, axis=-1)[:, :USED], 1, axis=-1)
        return p * chosen

    def ffn(self, h, layer, i):
        gate = sigmoid(h @ layer["ffn_gate_inp_shexp.weight"])[:, None]
        return self.experts(h, layer) + gate * self.dense(h, layer, "_shexp")


class Glm4Moe(Family):
    arch, biases, qk_norms, n_rot, n_dense = "glm4moe", True, True, 32, 1
    norm_before_ffn = "post_attention_norm.weight"
    scale = 1.5
    keys = {
        "attention.key_length": DIM, "attention.value_length": DIM, "rope.dimension_count": 32, "expert_count": EXPERTS,
        "expert_used_count": USED, "expert_feed_forward_length": FF_EXP, "expert_shared_count": 1, "leading_dense_block_count": 1,
        "expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 1.5,
    }  # fmt: skip

    def expert_tensors(self):
        return super().expert_tensors() | self.shared_tensors(FF_EXP) | {"exp_probs_b.bias": (EXPERTS,)}

    def route(self, logits, layer):  # the bias counts for the choice only
        p = sigmoid(logits)
        chosen = np.zeros_like(p)
        np.put_along_axis(chosen, np.argsort(-(p + layer["exp_probs_b.bias"]), axis=-1)[:, :USED], 1, axis=-1)
        p = p * chosen
        return self.scale * p / p.sum(-1, keepdims=True)

    def ffn(self, h, layer, i):
        return self.dense(h, layer) if i < self.n_dense else self.experts(h, layer) + self.dense(h, layer, "_shexp")


class Mistral3(Family):
    """YaRN: pairs that turn often within the original context keep their frequency, slow ones are divided by the factor."""

    arch, interleaved = "mistral3", True
    factor, n_ctx_orig = 4.0, 2048
    keys = {
        "rope.scaling.type": "yarn", "rope.scaling.factor": factor, "rope.scaling.original_context_length": n_ctx_orig,
        "rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0, "rope.scaling.yarn_log_multiplier": 1.0,
        "attention.temperature_scale": 0.1,
    }  # fmt: skip

    def rope(self, x, t):  # with the multiplier of 1 cos and sin keep their size
        def pair(turns):
            return DIM * np.log(self.n_ctx_orig / (turns * 2 * np.pi)) / (2 * np.log(10000.0))

        low, high = max(np.floor(pair(32)), 0), min(np.ceil(pair(1)), DIM - 1)
        slow = np.clip((np.arange(DIM // 2) - low) / (high - low), 0, 1)
        return rotate(x, DIM, True, 1 / (slow / self.factor + 1 - slow))


class MiniMaxM2(Family):
    arch, qk_norms, n_rot, n_dense = "minimax-m2", True, 32, 0
    keys = {
        "rope.dimension_count": 32, "expert_count": EXPERTS, "expert_used_count": USED, "expert_feed_forward_length": FF_EXP,
        "expert_gating_func": 2,
    }  # fmt: skip

    def layer_tensors(self, i):  # norms over all heads together
        return super().layer_tensors(i) | {"attn_q_norm.weight": (HEADS * DIM,), "attn_k_norm.weight": (KV_HEADS * DIM,)}

    def expert_tensors(self):
        return super().expert_tensors() | {"exp_probs_b.bias": (EXPERTS,)}

    def qkv(self, h, t, layer):
        q, k, v = (h @ layer[f"attn_{name}.weight"].T for name in "qkv")
        q, k = rms_norm(q, layer["attn_q_norm.weight"]), rms_norm(k, layer["attn_k_norm.weight"])
        q, k, v = (x.reshape(len(h), -1, DIM) for x in (q, k, v))
        return self.rope(q, t), self.rope(k, t), v

    def route(self, logits, layer):
        p = sigmoid(logits)
        chosen = np.zeros_like(p)
        np.put_along_axis(chosen, np.argsort(-(p + layer["exp_probs_b.bias"]), axis=-1)[:, :USED], 1, axis=-1)
        return p * chosen / (p * chosen).sum(-1, keepdims=True)


class SeedOss(Family):
    arch, biases, norm_before_ffn = "seed_oss", True, "post_attention_norm.weight"
    keys = {"attention.key_length": DIM, "attention.value_length": DIM}


class Ernie(Family):
    arch, interleaved = "ernie4_5", True


class ErnieMoe(Ernie):
    arch, n_dense = "ernie4_5-moe", 1
    keys = {
        "expert_count": EXPERTS, "expert_used_count": USED, "expert_feed_forward_length": FF_EXP, "expert_shared_count": 2,
        "expert_shared_feed_forward_length": FF_SHARED, "leading_dense_block_count": 1, "interleave_moe_layer_step": 1,
    }  # fmt: skip

    def expert_tensors(self):
        return super().expert_tensors() | self.shared_tensors(FF_SHARED) | {"exp_probs_b.bias": (EXPERTS,)}

    def route(self, logits, layer):  # the bias counts for the choice only
        p = softmax(logits)
        chosen = np.zeros_like(p)
        np.put_along_axis(chosen, np.argsort(-(p + layer["exp_probs_b.bias"]), axis=-1)[:, :USED], 1, axis=-1)
        p = p * chosen
        return p / p.sum(-1, keepdims=True)

    def ffn(self, h, layer, i):
        return self.dense(h, layer) if i < self.n_dense else self.experts(h, layer) + self.dense(h, layer, "_shexp")


class Phi3(Family):
    arch, n_rot = "phi3", 48

    def __init__(self, n_ctx_orig):
        self.divisors = "rope_factors_long.weight" if n_ctx_orig < 2048 else "rope_factors_short.weight"
        self.keys = {"rope.dimension_count": 48, "rope.scaling.original_context_length": n_ctx_orig, "rope.scaling.attn_factor": 1.19}

    def global_tensors(self):
        return super().global_tensors() | {"rope_factors_long.weight": (24,), "rope_factors_short.weight": (24,)}

    def layer_tensors(self, i):
        return {
            "attn_norm.weight": (EMBD,), "ffn_norm.weight": (EMBD,), "attn_qkv.weight": ((HEADS + 2 * KV_HEADS) * DIM, EMBD),
            "attn_output.weight": (EMBD, HEADS * DIM), "ffn_up.weight": (2 * FF, EMBD), "ffn_down.weight": (EMBD, FF),
        }  # fmt: skip

    def rope(self, x, t):
        return rotate(x, 48, False, t[self.divisors], 1.19)

    def qkv(self, h, t, layer):
        y = (h @ layer["attn_qkv.weight"].T).reshape(len(h), -1, DIM)
        q, k, v = np.split(y, [HEADS, HEADS + KV_HEADS], axis=1)
        return self.rope(q, t), self.rope(k, t), v

    def dense(self, h, layer, tail=""):
        gate, up = np.split(h @ layer["ffn_up.weight"].T, 2, axis=-1)
        return (silu(gate) * up) @ layer["ffn_down.weight"].T


def random_tensors(family, seed):
    rng = np.random.default_rng(seed)
    shapes = family.global_tensors()
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.{name}": shape for name, shape in family.layer_tensors(i).items()}
    tensors = {}
    for name, shape in shapes.items():
        x = rng.standard_normal(shape)
        if "norm" in name:
            x = 1 + 0.1 * x
        elif "rope_factors" in name:
            x = 1 + 3 * rng.random(shape)
        elif name != "token_embd.weight":
            x = x * (0.3 if "bias" in name else 0.08)
        tensors[name] = x.astype(np.float32)
    return tensors


def write_model(path, family, tensors, split_max_tensors=0):
    """With split_max_tensors the reference writer makes several files, NAME-00001-of-0000N.gguf."""
    writer = gguf.GGUFWriter(path, family.arch, split_max_tensors=split_max_tensors)
    keys = {
        "block_count": LAYERS, "context_length": 2048, "embedding_length": EMBD, "feed_forward_length": FF, "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS, "attention.layer_norm_rms_epsilon": EPS, "rope.freq_base": 10000.0,
    } | family.keys  # fmt: skip
    for key, value in keys.items():
        kinds = {bool: writer.add_bool, float: writer.add_float32, str: writer.add_string}
        add = kinds.get(type(value), writer.add_uint32)
        add(f"{family.arch}.{key}", value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
