"""A tiny random pair: a target of two layers, and a drafter that is its first layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

VOCAB = 256
_STD = {"embed": 1.0, "head": 0.30, "matrix": 0.10, "second": 0.11}


def make_pair(folder: Path, *, vocab: int = VOCAB) -> tuple[str, str]:
    """Save target and drafter below a folder; return their paths."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    target = LlamaForCausalLM(_config(LlamaConfig, layers=2, vocab=vocab))
    with torch.no_grad():
        for name, weight in target.named_parameters():
            if weight.ndim == 2:
                weight.normal_(std=_std(name))
    drafter = LlamaForCausalLM(_config(LlamaConfig, layers=1, vocab=vocab))
    wanted = drafter.state_dict()
    drafter.load_state_dict({k: v for k, v in target.state_dict().items() if k in wanted})
    paths = []
    for name, model in (("target", target), ("drafter", drafter)):
        model.save_pretrained(folder / name)
        _make_tokenizer().save_pretrained(folder / name)
        paths.append(str(folder / name))
    return paths[0], paths[1]


def _make_tokenizer() -> Any:
    """Return a tokenizer of single bytes, for prompts that are texts."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def _config(kind: Any, *, layers: int, vocab: int) -> Any:
    return kind(
        vocab_size=vocab,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )


def _std(name: str) -> float:
    if "embed" in name:
        return _STD["embed"]
    if "lm_head" in name:
        return _STD["head"]
    return _STD["second"] if ".1." in name else _STD["matrix"]
