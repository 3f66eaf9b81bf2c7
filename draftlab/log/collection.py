"""What to collect, whatever the engine: pair, sampling, size and what the log holds of tokens."""

from __future__ import annotations

from dataclasses import dataclass

from draftlab.errors import InputError

DRAFT_SAMPLE_METHODS = ("probabilistic", "greedy")


@dataclass(frozen=True, kw_only=True)
class CollectionSettings:
    """What to run; each engine adds what only it knows."""

    target: str
    """Checkpoint."""
    drafter: str | None = None
    """Checkpoint with the target's vocabulary; None: the engine's own way to draft."""
    draft_sample_method: str = "probabilistic"
    """Of `DRAFT_SAMPLE_METHODS`: how drafts are drawn."""
    num_speculative_tokens: int = 5
    """K, draft tokens per proposal."""
    temperature: float = 0.6
    """0 is greedy."""
    top_p: float = 0.95
    """On the target side, as in vLLM, like the next two."""
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    """0 is off."""
    concurrency: int = 64
    """Requests in a batch."""
    max_new_tokens: int = 128
    """Per answer."""
    max_labelled: int | None = None
    """Stop after about so many labelled drafts; None: each prompt once."""
    seed: int = 0
    dtype: str = "auto"
    tokens: bool = False
    """Log token ids too."""
    raw_ids: bool = False
    """Log prompt ids unhashed."""

    def check(self) -> None:
        """Raise InputError for a setting out of its range."""
        for name, good, wanted in self._ranges():
            if not good:
                raise InputError(f"{name} must be {wanted}, got {getattr(self, name)!r}")

    def _ranges(self) -> list[tuple[str, bool, str]]:
        """Return name, whether the value is good, and what is wanted, of each bounded setting."""
        return [
            ("temperature", self.temperature >= 0, ">= 0"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("top_k", self.top_k >= 0, ">= 0 (0 is off)"),
            ("min_p", 0 <= self.min_p < 1, "in [0, 1)"),
            ("num_speculative_tokens", self.num_speculative_tokens >= 1, ">= 1"),
            ("concurrency", self.concurrency >= 1, ">= 1"),
            ("max_new_tokens", self.max_new_tokens >= 1, ">= 1"),
            ("max_labelled", self.max_labelled is None or self.max_labelled >= 1, ">= 1"),
            ("seed", self.seed >= 0, ">= 0"),
            (
                "draft_sample_method",
                self.draft_sample_method in DRAFT_SAMPLE_METHODS,
                " or ".join(DRAFT_SAMPLE_METHODS),
            ),
        ]
