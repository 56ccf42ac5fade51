#!/usr/bin/env python3
"""Golden next-token log-probabilities from Hugging Face transformers on a GGUF model's dequantized weights.

Independent of Baton: weights are dequantized by the `gguf` package, and the model is transformers' own class with a
configuration written here from the GGUF metadata (f32, eager attention). The converter's changes are undone: the
reordered query and key rows of the Llama family, and the 1 that is folded into Gemma's norm weights.

    logits_golden.py MODEL.gguf OUT.json --prompts text     # 20 prompts and the perplexity text, by the model's tokenizer
    logits_golden.py MODEL.gguf OUT.json --prompts random   # random ids, for models without a useful tokenizer

The tiny models of tests/model/tiny_reference_models.h are written by //tests/fakes:write_tiny_gguf DIR, and named
logits_NAME.json.

Needs: torch transformers gguf (CPU is enough). Golden format: see tests/model/logits_golden.h.
"""
import argparse
import json
import math
import pathlib
import random

import numpy as np
import torch
import transformers
from gguf import GGUFReader
from gguf.quants import dequantize

HERE = pathlib.Path(__file__).parent

PROMPTS = [
    "Hello",
    "The capital of France is",
    "1, 1, 2, 3, 5, 8, 13,",
    "Once upon a time, in a village by the sea, there lived a clockmaker who",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n    if n < 2:\n        return",
    "#include <vector>\n\ntemplate <typename T>\nT Sum(const std::vector<T>& values) {\n  T total{};\n  for (const T& value :",
    "今天天气真",
    "机器学习是人工智能的一个分支,它研究如何让计算机从数据中学习规律。与传统编程不同,",
    "La révolution française a commencé en",
    "Ein Leuchtturm ist ein Turm, der",
    "Q: What is the boiling point of water at sea level?\nA:",
    "🙂🙂🙃 emoji test 👩‍👩‍👧‍👦 and then",
    "    \t  \n\n   indented   text\twith   odd \n whitespace",
    "{\"name\": \"baton\", \"roles\": [\"prefill\", \"decode\"], \"blocks\": 16, \"ok\":",
    "SELECT customer_id, SUM(amount) AS total FROM orders WHERE placed_at >= '2024-01-01' GROUP BY customer_id HAVING",
    "Translate to Spanish: The cat sleeps on the warm roof.\nSpanish:",
    "A KV cache keeps the keys and values of every token that was read, so that the next token needs only one new row. "
    "Without it, each step would",
    "<|im_start|>user\nName three primary colours.<|im_end|>\n<|im_start|>assistant\n",
    "x = 3; y = x * 7 + 2; print(y) prints",
    # About 200 tokens.
    "The river rises in the hills above the old mill, where three springs meet under a stand of alder trees. For its first "
    "few miles it is little more than a brook, cold even in August, and children dam it with stones. Below the second "
    "bridge it widens, and there the valley floor is flat enough for hay. In wet years the meadows flood in March, which "
    "the farmers welcome, because the silt is better than anything that can be bought in a sack. The towns begin after "
    "that: first a market with a church far too large for it, then a row of mills that made cloth for two hundred years "
    "and now contain offices, and finally the port, where the river gives up its name and becomes an estuary. Ships used "
    "to wait there for the tide, sometimes for days, and the inns along the quay still have names that only a sailor "
    "would have chosen. Today the tide matters mostly to the birds, which arrive every autumn in such numbers that",
]


def get(reader, key, default=None):
    field = reader.fields.get(key)
    return default if field is None else field.contents()


def unpermute(w, heads):
    """Undoes the converter's reordering of each head's rows from halves to neighbouring pairs."""
    rows = w.shape[0] // heads // 2
    return w.reshape(heads, rows, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def hf_config(reader, arch, shapes):
    g = lambda name, default=None: get(reader, f"{arch}.{name}", default)
    heads = g("attention.head_count")
    dim = g("embedding_length")
    head_dim = g("attention.key_length", dim // heads)
    common = dict(
        vocab_size=shapes["token_embd.weight"][0], hidden_size=dim, intermediate_size=g("feed_forward_length"),
        num_hidden_layers=g("block_count"), num_attention_heads=heads,
        num_key_value_heads=g("attention.head_count_kv", heads), head_dim=head_dim,
        max_position_embeddings=g("context_length"), rms_norm_eps=g("attention.layer_norm_rms_epsilon"),
        tie_word_embeddings="output.weight" not in shapes, attn_implementation="eager")
    theta = g("rope.freq_base", 10000.0)
    plain = {"rope_type": "default", "rope_theta": theta}
    if arch == "llama":
        if "rope_freqs.weight" in shapes:  # The tiny model's factors come from exactly these numbers.
            plain = {"rope_type": "llama3", "rope_theta": theta, "factor": 8.0, "low_freq_factor": 1.0,
                     "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
        if g("rope.scaling.type") == "linear":
            plain = {"rope_type": "linear", "rope_theta": theta, "factor": g("rope.scaling.factor")}
        if g("attention.sliding_window"):
            return transformers.MistralConfig(rope_parameters=plain, sliding_window=g("attention.sliding_window"), **common)
        return transformers.LlamaConfig(rope_parameters=plain, **common)
    if arch == "qwen2":
        return transformers.Qwen2Config(rope_parameters=plain, use_sliding_window=False, **common)
    if arch == "qwen3":
        return transformers.Qwen3Config(rope_parameters=plain, attention_bias=False, **common)
    if arch == "gemma3":
        layers = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(common["num_hidden_layers"])]
        return transformers.Gemma3TextConfig(
            rope_parameters={"full_attention": plain,
                             "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}},
            sliding_window=g("attention.sliding_window"), layer_types=layers, query_pre_attn_scalar=head_dim,
            hidden_activation="gelu_pytorch_tanh", **common)
    raise SystemExit(f"no reference for architecture {arch}")


NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm", "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def hf_name(name, arch):
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    if name == "output.weight":
        return "lm_head.weight"
    _, layer, part, kind = name.split(".")
    if arch == "gemma3" and part == "ffn_norm":
        return f"model.layers.{layer}.pre_feedforward_layernorm.weight"
    return f"model.layers.{layer}.{NAMES[part]}.{kind}"


def load(path):
    reader = GGUFReader(path)
    arch = get(reader, "general.architecture")
    tensors = {}
    for t in reader.tensors:
        tensors[t.name] = dequantize(t.data, t.tensor_type).astype(np.float32).reshape(tuple(reversed(t.shape.tolist())))
    config = hf_config(reader, arch, {n: w.shape for n, w in tensors.items()})
    state = {}
    for name, w in tensors.items():
        if name == "rope_freqs.weight":
            continue
        if arch == "llama" and ".attn_q." in name:
            w = unpermute(w, config.num_attention_heads)
        if arch == "llama" and ".attn_k." in name:
            w = unpermute(w, config.num_key_value_heads)
        if arch == "gemma3" and name.endswith("norm.weight"):
            w = w - 1
        state[hf_name(name, arch)] = torch.from_numpy(np.array(w))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    if "rope_freqs.weight" in tensors:
        theta, d = config.rope_parameters["rope_theta"], config.head_dim
        want = theta ** (-np.arange(0, d, 2) / d) / tensors["rope_freqs.weight"]
        got = model.model.rotary_emb.inv_freq.numpy()
        assert np.allclose(want, got, rtol=1e-6), (want, got)
    return reader, arch, model.eval()


def text_prompts(path, reader):
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    bos = [get(reader, "tokenizer.ggml.bos_token_id")] if get(reader, "tokenizer.ggml.add_bos_token", False) else []
    encode = lambda text: bos + tokenizer.encode(text, add_special_tokens=False)
    return [encode(p) for p in PROMPTS], encode((HERE / "perplexity_text.txt").read_text())


def random_prompts(vocab_size):
    rng = random.Random(1)
    ids = lambda n: [rng.randrange(vocab_size) for _ in range(n)]
    return [ids(n) for n in (1, 2, 3, 5, 8, 13, 17, 31, 32, 33, 64, 100)], ids(150)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--prompts", choices=["text", "random"], required=True)
    args = parser.parse_args()
    torch.manual_seed(0)
    reader, arch, model = load(args.model)
    vocab = model.config.vocab_size
    prompts, long_ids = text_prompts(args.model, reader) if args.prompts == "text" else random_prompts(vocab)
    rng = random.Random(2)
    fixed_ids = sorted(rng.sample(range(vocab), 20))
    cases = []
    with torch.no_grad():
        for ids in prompts + [long_ids]:
            logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), dim=-1)
            n = len(ids)
            positions = []
            for p in sorted({0, n // 3, 2 * n // 3, n - 1}):
                top = torch.topk(logprobs[p], 20).indices.tolist()
                shown = top + [i for i in fixed_ids if i not in top]
                positions.append({"position": p, "ids": shown,
                                  "logprobs": [round(logprobs[p][i].item(), 6) for i in shown]})
            nll = -sum(logprobs[i][ids[i + 1]].item() for i in range(n - 1)) / max(1, n - 1)
            cases.append({"token_ids": ids, "mean_nll": round(nll, 6), "positions": positions})
    perplexity = math.exp(cases[-1]["mean_nll"])
    golden = {"model": args.model.name, "architecture": arch, "transformers": transformers.__version__,
              "torch": torch.__version__.split("+")[0], "cases": cases}
    with open(args.out, "w") as f:
        head = {k: v for k, v in golden.items() if k != "cases"}
        f.write(json.dumps(head)[:-1] + ", \"cases\": [\n")
        f.write(",\n".join(json.dumps(c, separators=(",", ":")) for c in cases))
        f.write("\n]}\n")
    print(f"{args.out}: {len(cases)} cases, {[len(c['token_ids']) for c in cases]} tokens, "
          f"perplexity of the last {perplexity:.4f}")


if __name__ == "__main__":
    main()
