"""A model of random weights, small enough for two CPU cores, so that real engines run without a download.

It has the files of a Hugging Face folder and the architecture of a real one (Llama, or gpt-oss with its attention sinks and
experts), and is no language model: what it generates means nothing. Written with numpy, `tokenizers` and `safetensors`
alone, since torch and transformers are not on every machine that has a Paceline, and the same for the same seed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["llama", "gpt-oss"]
KINDS: tuple[Kind, ...] = ("llama", "gpt-oss")
FILES = ("README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")

VOCAB, HIDDEN, LAYERS, POSITIONS = 512, 128, 2, 4096
HEADS, KV_HEADS, HEAD_DIM = 2, 1, 64
EXPERTS, EXPERTS_PER_TOKEN = 4, 2
PAD, BOS, EOS, UNKNOWN = 0, 1, 2, 3
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")  # ids 0 to 3; then the 256 bytes; ids from 260 on have no text
#: Wide enough that what the layers add outweighs a token's own embedding: narrower, greedy text repeats its first token.
SPREAD = HIDDEN**-0.5

_CHAT = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
_MLP = {"llama": 256, "gpt-oss": 128}

Bf16 = npt.NDArray[np.uint16]  # numpy has no bfloat16: its upper half of a float32, as bits


def write_tiny_model(folder: Path, kind: Kind = "llama", seed: int = 0) -> None:
    """Weights, configuration and tokenizer into a folder, which is made; files of these names are replaced."""
    if kind not in KINDS:
        raise ValueError(f"kind = {kind!r} is not one of {', '.join(KINDS)}")
    folder.mkdir(parents=True, exist_ok=True)
    weights = dict(_weights(kind, np.random.default_rng(seed)))
    (folder / "model.safetensors").write_bytes(_packed(weights))
    _tokenizer().save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config())
    _write_json(folder / "generation_config.json", {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD})
    parameters = sum(array.size for array in weights.values())
    (folder / "README.md").write_text(_readme(kind, seed, parameters), encoding="utf-8")
    _write_json(folder / "config.json", _config(kind))  # last: an engine takes a folder without it for none


# --- configuration -------------------------------------------------------------------------------------------


def _config(kind: Kind) -> dict[str, Any]:
    common: dict[str, Any] = {
        "attention_dropout": 0.0,
        "bos_token_id": BOS,
        "dtype": "bfloat16",
        "eos_token_id": EOS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": _MLP[kind],
        "max_position_embeddings": POSITIONS,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "pad_token_id": PAD,
        "use_cache": True,
        "vocab_size": VOCAB,
    }
    return common | (_LLAMA if kind == "llama" else _GPT_OSS)


_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "mlp_bias": False,
    "model_type": "llama",
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": True,
}
_GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "layer_types": ["sliding_attention", "full_attention"],
    "model_type": "gpt_oss",
    "num_experts_per_tok": EXPERTS_PER_TOKEN,
    "num_local_experts": EXPERTS,
    "output_router_logits": False,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": POSITIONS,
        "rope_theta": 150000.0,
        "rope_type": "yarn",
        "truncate": False,
    },
    "router_aux_loss_coef": 0.001,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
}


def _tokenizer_config() -> dict[str, Any]:
    return {
        "add_bos_token": False,
        "bos_token": SPECIAL[BOS],
        "chat_template": _CHAT,
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIAL[EOS],
        "model_max_length": POSITIONS,
        "pad_token": SPECIAL[PAD],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": SPECIAL[UNKNOWN],
    }


def _tokenizer() -> Any:
    """A token a byte: byte-level BPE without a merge."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # 30 ms that only this pays

    symbols = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {symbol: place for place, symbol in enumerate(symbols)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=SPECIAL[UNKNOWN]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(symbol, special=True) for symbol in SPECIAL])
    return tokenizer


def _readme(kind: Kind, seed: int, parameters: int) -> str:
    return (
        f"# RANDOM WEIGHTS, not a language model\n\n"
        f"Written by `paceline tiny-model --kind {kind} --seed {seed}`: {parameters:,d} random parameters in the shape of a\n"
        f"{_config(kind)['architectures'][0]}, with a tokenizer of one token a byte. It is for running an inference engine\n"
        "where there is no real model; its output means nothing, and nothing measured with it says anything about a model.\n"
    )


# --- weights -------------------------------------------------------------------------------------------------


def _weights(kind: Kind, random: np.random.Generator) -> Iterator[tuple[str, Bf16]]:
    def drawn(*shape: int) -> Bf16:
        return _bf16(random.standard_normal(shape, np.float32) * np.float32(SPREAD))

    yield "model.embed_tokens.weight", drawn(VOCAB, HIDDEN)
    for number in range(LAYERS):
        layer = f"model.layers.{number}"
        for name, rows in (("q_proj", HEADS), ("k_proj", KV_HEADS), ("v_proj", KV_HEADS)):
            yield f"{layer}.self_attn.{name}.weight", drawn(rows * HEAD_DIM, HIDDEN)
        yield f"{layer}.self_attn.o_proj.weight", drawn(HIDDEN, HEADS * HEAD_DIM)
        wide = _MLP[kind]
        if kind == "llama":
            yield f"{layer}.mlp.gate_proj.weight", drawn(wide, HIDDEN)
            yield f"{layer}.mlp.up_proj.weight", drawn(wide, HIDDEN)
            yield f"{layer}.mlp.down_proj.weight", drawn(HIDDEN, wide)
        else:
            for name, rows in (("q_proj", HEADS), ("k_proj", KV_HEADS), ("v_proj", KV_HEADS)):
                yield f"{layer}.self_attn.{name}.bias", drawn(rows * HEAD_DIM)
            yield f"{layer}.self_attn.o_proj.bias", drawn(HIDDEN)
            yield f"{layer}.self_attn.sinks", drawn(HEADS)
            yield f"{layer}.mlp.router.weight", drawn(EXPERTS, HIDDEN)
            yield f"{layer}.mlp.router.bias", drawn(EXPERTS)
            yield f"{layer}.mlp.experts.gate_up_proj", drawn(EXPERTS, HIDDEN, 2 * wide)
            yield f"{layer}.mlp.experts.gate_up_proj_bias", drawn(EXPERTS, 2 * wide)
            yield f"{layer}.mlp.experts.down_proj", drawn(EXPERTS, wide, HIDDEN)
            yield f"{layer}.mlp.experts.down_proj_bias", drawn(EXPERTS, HIDDEN)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}.{name}.weight", _bf16(np.ones(HIDDEN, np.float32))
    yield "model.norm.weight", _bf16(np.ones(HIDDEN, np.float32))
    if kind == "gpt-oss":  # the Llama's output is tied to its embeddings
        yield "lm_head.weight", drawn(VOCAB, HIDDEN)


def _bf16(values: npt.NDArray[np.float32]) -> Bf16:
    """Rounded to nearest, ties to even; the values here are finite."""
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype("<u2")


def _packed(weights: dict[str, Bf16]) -> bytes:
    from safetensors import TensorSpec, serialize

    specs = {
        name: TensorSpec(dtype="bfloat16", shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes)
        for name, array in weights.items()
    }
    # One entry only: the library writes several in an order of chance. transformers wants this one.
    return bytes(serialize(specs, metadata={"format": "pt"}))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
