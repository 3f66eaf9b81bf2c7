"""Batched speculative decoding with continuous batching, step by step, as an engine does it.

One engine step, in vLLM's order: the target verifies the drafts of the previous step and reads
the prompts of new requests; the verdict is taken; the drafter proposes K new tokens for every
request that goes on. A proposal of step t therefore gets its labels in step t + 1.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from draftlab.engine import sampling
from draftlab.engine.sampling import Support, Truncation
from draftlab.engine.stats import alternatives, draft_features, target_features
from draftlab.schema import Excluded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from draftlab.engine.confidence import ConfidenceHead
    from draftlab.engine.distributions import DistributionSample
    from draftlab.engine.drafters import Drafter
    from draftlab.engine.model import KeyValueCache, Model

Columns = dict[str, Any]
"""Columns of the log as numpy arrays, masked where null."""
FinishReason = Literal["stop", "length"]

_PREFILL_TOKENS = 4096
"""Prompt tokens read in one pass; more new requests are read in several."""


@dataclass(frozen=True)
class Request:
    """What to continue, and how."""

    request: int
    """Key in the log; with the seed it determines all noise of the request."""
    prompt: tuple[int, ...]
    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_new_tokens: int = 128


@dataclass
class _Slot:
    """A request in progress."""

    request: Request
    noise: np.random.Generator
    output: list[int] = field(default_factory=list)
    reason: FinishReason | None = None

    @property
    def length(self) -> int:
        """Tokens whose keys and values stand verified in the cache: all but the last emitted."""
        return len(self.request.prompt) + len(self.output) - 1

    def last(self, count: int) -> list[int]:
        """Return the last tokens of prompt and output."""
        return [*self.request.prompt[-count:], *self.output[-count:]][-count:]


@dataclass(frozen=True)
class Finished:
    """A request that has ended."""

    request: int
    output: tuple[int, ...]
    reason: FinishReason


@dataclass(frozen=True)
class StepResult:
    """What one engine step brought."""

    row: dict[str, Any]
    """A row of the log's steps."""
    drafts: Columns | None
    """Rows of the log's drafts that became final: the proposals of the previous step."""
    finished: tuple[Finished, ...]


class Admitted(Protocol):
    """How much of the pending drafts a step verifies."""

    @property
    def lengths(self) -> np.ndarray[Any, Any]:
        """[rows] int: drafts sent of each request, a prefix of its proposal."""

    @property
    def budget(self) -> int:
        """Their sum at most."""

    @property
    def reason(self) -> str:
        """Why the budget is what it is."""


class Admission(Protocol):
    """Adaptive verification, called three times a step: admit, learn, predict."""

    def admit(
        self, columns: Columns, *, num_sampling_requests: int, num_non_draft_tokens: int
    ) -> Admitted:
        """Choose what to verify of the pending proposals, given their columns."""

    def learn(self, columns: Columns | None) -> None:
        """Take in the rows that this step graded."""

    def predict(self, columns: Columns) -> Columns:
        """Return columns that the log keeps of new proposals, given their keys and features."""


@dataclass(frozen=True)
class _Proposal:
    """Drafts of the previous step that wait for their verdict."""

    tokens: Tensor  # [rows, K]
    q: Tensor  # [rows, K, vocab], what they were drawn from
    logits: Tensor  # [rows, K, vocab], before temperature
    uniforms: Tensor  # [rows, 2 K + 1]: drafting, acceptance, recovery or bonus
    columns: Columns  # keys and features, flat over (row, position)
    admitted: Tensor | None = None  # [rows], drafts that are verified; None: all

    def cut(self, admitted: np.ndarray[Any, Any]) -> _Proposal:
        """Return the proposal with as many positions as the longest admitted prefix, at least 1."""
        width = max(1, int(admitted.max()))
        return replace(
            self,
            tokens=self.tokens[:, :width],
            q=self.q[:, :width],
            logits=self.logits[:, :width],
            admitted=torch.from_numpy(admitted).to(self.tokens.device),
        )


@dataclass(frozen=True)
class _Verdict:
    """What the target says of the drafts; arrays over [rows]."""

    accepted: np.ndarray[Any, Any]
    next_token: list[int]
    columns: Columns  # what the log keeps of the target's side, flat over (row, position)
    p: Support | None = None  # of the drafted positions, flat over (row, position)


def make_noise(seed: int, request: int) -> np.random.Generator:
    """Return the noise of one request, independent of every other request and of the batch."""
    return np.random.Generator(np.random.Philox(key=[seed, request]))


class SpeculativeDecoder:
    """Speculative decoding of a stream of requests in a fixed number of slots.

    Parameters
    ----------
    target : Model
        Model whose distribution the output follows.
    cache : KeyValueCache
        The target's cache; its rows are the slots, its length bounds prompt + output + K.
    drafter : Drafter
        Proposes the draft tokens.
    num_speculative_tokens : int
        K; 0 is plain decoding.
    greedy_drafting : bool
        Draft the drafter's top token instead of drawing from its distribution.
    stop_tokens : set of int
        Tokens that end a request; the stop token itself is emitted.
    seed : int
        Seed of all noise.
    head : ConfidenceHead, optional
        Predicts acceptance from the drafter's hidden state; fills the column ``confidence``.
    keep_hidden : bool
        Give the drafter's hidden states with the rows, as a column ``hidden`` [n, hidden] that is
        not part of the log.
    admission : Admission, optional
        Adaptive verification: how many drafts of each proposal are sent to the target.
    distributions : DistributionSample, optional
        Takes (p, q) of observed positions.
    tree_width : int
        Alternatives of each draft to give with the rows, for the log's trees; 0 is none.
    """

    def __init__(
        self,
        target: Model,
        cache: KeyValueCache,
        drafter: Drafter,
        *,
        num_speculative_tokens: int,
        greedy_drafting: bool = False,
        stop_tokens: frozenset[int] = frozenset(),
        seed: int = 0,
        head: ConfidenceHead | None = None,
        keep_hidden: bool = False,
        admission: Admission | None = None,
        distributions: DistributionSample | None = None,
        tree_width: int = 0,
    ) -> None:
        self.target = target
        self.cache = cache
        self.drafter = drafter
        self.K = num_speculative_tokens
        self.greedy_drafting = greedy_drafting
        self.stop_tokens = stop_tokens
        self.seed = seed
        self.head = head
        self.keep_hidden = keep_hidden
        self.admission = admission
        self.distributions = distributions
        self.tree_width = min(tree_width, target.config.vocab_size)
        self.slots: list[_Slot | None] = [None] * cache.keys.shape[1]
        self.steps = 0
        self._proposal: _Proposal | None = None

    @property
    def busy(self) -> bool:
        """Whether a request is in progress."""
        return any(slot is not None for slot in self.slots)

    @torch.inference_mode()
    def step(self, arrive: Callable[[], Request | None]) -> StepResult:
        """Run one engine step.

        ``arrive`` is asked for a request for every free slot until it answers None.
        """
        started = time.perf_counter()
        unix_ms = time.time_ns() // 1_000_000
        proposal, self._proposal = self._proposal, None
        running = self._occupied()
        new = self._admit(arrive)
        prompt_tokens = sum(len(self._slot(i).request.prompt) for i in new)
        counts: dict[str, Any] = {"num_admitted": 0, "num_accepted": 0, "num_emitted": 0}
        drafts = None
        if running:
            if self.admission is not None and proposal is not None:
                sizes = len(running) + len(new), len(running) + prompt_tokens
                proposal = self._trim(proposal, sizes, counts)
            drafts = self._verify(running, proposal, counts)
        if self.admission is not None:
            self.admission.learn(drafts)
        if new:
            counts["num_emitted"] += self._prefill(new)
        self._synchronize()
        verify_ms = 1e3 * (time.perf_counter() - started)
        finished = self._finish()
        live = self._occupied()
        contexts = [self._slot(i).length + 1 for i in live]
        draft_ms = self._propose(live) if live and self.K else 0.0
        row = {
            "step": self.steps,
            "unix_ms": unix_ms,
            "num_requests": len(running) + len(new),
            "num_sampling_requests": len(running) + len(new),
            "num_non_draft_tokens": len(running) + prompt_tokens,
            "num_proposed": len(live) * self.K,
            **counts,
            "offered_k": self.K,
            "mean_context_tokens": float(np.mean(contexts)) if contexts else None,
            "draft_ms": draft_ms,
            "verify_ms": verify_ms,
        }
        self.steps += 1
        return StepResult(row, drafts, finished)

    def pending_drafts(self) -> Columns | None:
        """Return the rows of proposals that no verdict has covered, for a log that ends here."""
        if self._proposal is None:
            return None
        columns = self._proposal.columns
        n = len(columns["position"])
        return columns | {
            "verify_step": np.ma.masked_all(n, dtype=np.int64),
            "admitted": np.zeros(n, dtype=bool),
            "accepted": np.ma.masked_all(n, dtype=bool),
        }

    def _slot(self, index: int) -> _Slot:
        slot = self.slots[index]
        assert slot is not None
        return slot

    def _occupied(self) -> list[int]:
        return [i for i, slot in enumerate(self.slots) if slot is not None]

    def _admit(self, arrive: Callable[[], Request | None]) -> list[int]:
        new = []
        for index, slot in enumerate(self.slots):
            if slot is None and (request := arrive()) is not None:
                longest = len(request.prompt) + request.max_new_tokens + self.K
                assert longest <= self.cache.length, "request does not fit into the cache"
                self.slots[index] = _Slot(request, make_noise(self.seed, request.request))
                new.append(index)
        return new

    def _finish(self) -> tuple[Finished, ...]:
        done = []
        for index in self._occupied():
            slot = self._slot(index)
            if slot.reason is not None:
                done.append(Finished(slot.request.request, tuple(slot.output), slot.reason))
                self.slots[index] = None
        return tuple(done)

    def _emit(self, index: int, tokens: Sequence[int]) -> int:
        """Append tokens to a request up to its end; return how many were kept."""
        slot = self._slot(index)
        for kept, token in enumerate(tokens, start=1):
            slot.output.append(token)
            if token in self.stop_tokens:
                slot.reason = "stop"
            elif len(slot.output) == slot.request.max_new_tokens:
                slot.reason = "length"
            if slot.reason is not None:
                return kept
        return len(tokens)

    def _prefill(self, new: list[int]) -> int:
        """Read the prompts of new requests and emit their first tokens."""
        longest = max(len(self._slot(i).request.prompt) for i in new)
        at_once = max(1, _PREFILL_TOKENS // longest)
        for start in range(0, len(new), at_once):
            part = new[start : start + at_once]
            slots = [self._slot(i) for i in part]
            lengths = self._tensor([len(s.request.prompt) for s in slots])
            width = int(lengths.max())
            # What padding writes to the cache is overwritten before it can be attended to.
            tokens = self._tensor(
                [s.request.prompt + (0,) * (width - len(s.request.prompt)) for s in slots]
            )
            positions = torch.arange(width, device=lengths.device).expand(tokens.shape)
            rows = self._tensor(part)
            hidden = self.target(tokens, positions, self.cache, rows)
            self.drafter.prefill(tokens, positions, rows)
            last = hidden[torch.arange(len(part), device=lengths.device), lengths - 1]
            p = sampling.target_distribution(self.target.head(last), self._params(slots))
            uniform = self._uniforms([s.noise.random() for s in slots])
            choice = sampling.draw(p.probs, uniform)
            for index, token in zip(part, _pick(p.tokens, choice), strict=True):
                self._emit(index, [token])
        return len(new)

    def _trim(
        self, proposal: _Proposal, sizes: tuple[int, int], counts: dict[str, Any]
    ) -> _Proposal:
        """Leave the drafts that adaptive verification admits."""
        assert self.admission is not None
        sampling_requests, non_draft_tokens = sizes
        chosen = self.admission.admit(
            proposal.columns,
            num_sampling_requests=sampling_requests,
            num_non_draft_tokens=non_draft_tokens,
        )
        cut = proposal.cut(np.asarray(chosen.lengths, dtype=np.int64))
        counts["budget"], counts["budget_reason"] = chosen.budget, chosen.reason
        # every row of the batch is as wide as the longest: the rest is padding
        counts["padded_tokens"] = non_draft_tokens + cut.tokens.numel()
        return cut

    def _verify(
        self, running: list[int], proposal: _Proposal | None, counts: dict[str, Any]
    ) -> Columns | None:
        """Verify the pending drafts, emit, and return their rows with labels."""
        slots = [self._slot(i) for i in running]
        last = self._tensor([s.last(1) for s in slots])
        if proposal is None:  # plain decoding
            uniforms = self._uniforms([[s.noise.random()] for s in slots])
            tokens, drafts = last, last[:, :0]
        else:
            uniforms, drafts = proposal.uniforms, proposal.tokens
            tokens = torch.cat((last, drafts), dim=1)
        starts = self._tensor([[s.length] for s in slots])
        positions = starts + torch.arange(tokens.shape[1], device=starts.device)
        hidden = self.target(tokens, positions, self.cache, self._tensor(running))
        verdict = judge(self.target.head(hidden), self._params(slots), drafts, proposal, uniforms)
        drafted = drafts.tolist()
        kept = np.zeros(len(running), dtype=np.int64)
        for row, index in enumerate(running):
            accepted = int(verdict.accepted[row])
            emitted = [*drafted[row][:accepted], verdict.next_token[row]]
            kept[row] = self._emit(index, emitted)
        counts["num_admitted"] = drafts.numel()
        if proposal is not None and proposal.admitted is not None:
            counts["num_admitted"] = int(proposal.admitted.sum())
        counts["num_accepted"] = int(np.minimum(verdict.accepted, kept).sum())
        counts["num_emitted"] = int(kept.sum())
        if proposal is None:
            return None
        labels = self._labels(proposal, verdict.accepted, kept)
        if self.distributions is not None and verdict.p is not None:
            self._keep(proposal, verdict.p, labels)
        return proposal.columns | self._widen(verdict.columns, proposal) | labels

    def _keep(self, proposal: _Proposal, p: Support, labels: Columns) -> None:
        """Offer the observed positions to the sample of distributions."""
        assert self.distributions is not None
        width = proposal.tokens.shape[1]
        inside = np.flatnonzero(proposal.columns["position"] < width)
        keys = {name: proposal.columns[name][inside] for name in ("request", "step", "slot")}
        keys["position"] = proposal.columns["position"][inside]
        observed = ~np.ma.getmaskarray(labels["accepted"]) & (labels["excluded"] == 0)
        self.distributions.add(keys, observed[inside], p, proposal.q.flatten(0, 1))

    def _widen(self, columns: Columns, proposal: _Proposal) -> Columns:
        """Bring columns of the verified positions to all K; what was not admitted is null."""
        if proposal.admitted is None:
            return columns
        rows, width = proposal.tokens.shape
        hidden = np.arange(self.K) >= proposal.admitted.cpu().numpy()[:, None]
        wide = {}
        for name, values in columns.items():
            full = np.zeros((rows, self.K), dtype=values.dtype)
            full[:, :width] = values.reshape(rows, width)
            wide[name] = np.ma.array(full, mask=hidden).ravel()
        return wide

    def _labels(
        self, proposal: _Proposal, accepted: np.ndarray[Any, Any], kept: np.ndarray[Any, Any]
    ) -> Columns:
        position = proposal.columns["position"]
        admitted = np.ones(len(position), dtype=bool)
        if proposal.admitted is not None:
            admitted = position < np.repeat(proposal.admitted.cpu().numpy(), self.K)
        accepted, kept = np.repeat(accepted, self.K), np.repeat(kept, self.K)
        # Behind the token that ended the request nothing was emitted, whatever the verdict.
        after_stop = (kept <= accepted) & (position >= kept)
        return {
            "verify_step": np.full(len(position), self.steps, dtype=np.int64),
            "admitted": admitted,
            "accepted": np.ma.array(position < accepted, mask=(position > accepted) | ~admitted),
            "excluded": proposal.columns["excluded"]
            | np.where(after_stop, int(Excluded.AFTER_STOP), 0).astype(np.uint16),
        }

    def _propose(self, live: list[int]) -> float:
        """Draft K tokens for every live request; return the time it took, ms."""
        self._synchronize()
        started = time.perf_counter()
        slots = [self._slot(i) for i in live]
        rows = self._tensor(live)
        temperature = self._params(slots).temperature
        uniforms = self._uniforms([s.noise.random(2 * self.K + 1) for s in slots])
        tokens = self._tensor([s.last(2) for s in slots])
        positions = self._tensor([[s.length - 1, s.length] for s in slots])
        drawn, all_q, all_logits, all_hidden = [], [], [], []
        for k in range(self.K):
            hidden = self.drafter.hidden(tokens, positions, rows)
            logits = self.drafter.model.head(hidden)
            q = sampling.draft_distribution(logits, temperature, greedy=self.greedy_drafting)
            tokens = sampling.draw(q, uniforms[:, k])[:, None]
            positions = positions[:, -1:] + 1
            drawn.append(tokens)
            all_q.append(q)
            all_logits.append(logits)
            all_hidden.append(hidden)
        self._synchronize()
        draft_ms = 1e3 * (time.perf_counter() - started)
        drafts, logits = torch.cat(drawn, dim=1), torch.stack(all_logits, dim=1)
        columns = self._keys(live) | self._features(logits, temperature, drafts)
        columns |= self._confidence(torch.stack(all_hidden, dim=1))
        if self.admission is not None:
            columns |= self.admission.predict(columns)
        self._proposal = _Proposal(drafts, torch.stack(all_q, dim=1), logits, uniforms, columns)
        return draft_ms

    def _keys(self, live: list[int]) -> Columns:
        slots = [self._slot(i) for i in live]
        return {
            "request": np.repeat([s.request.request for s in slots], self.K),
            "step": np.full(len(live) * self.K, self.steps, dtype=np.int64),
            "slot": np.repeat(np.array(live, dtype=np.int32), self.K),
            "position": np.tile(np.arange(self.K, dtype=np.int16), len(live)),
            "output_index": np.repeat(np.array([len(s.output) for s in slots]), self.K),
        }

    def _features(self, logits: Tensor, temperature: Tensor, drafts: Tensor) -> Columns:
        flat = logits.flatten(0, 1)
        given = flat, temperature.repeat_interleave(self.K), drafts.flatten()
        features = draft_features(*given)
        if self.tree_width:
            features |= alternatives(*given, self.tree_width)
        columns = {name: values.cpu().numpy() for name, values in features.items()}
        nonfinite = np.isnan(columns["logit_qmax"])
        excluded = np.where(nonfinite, int(Excluded.NONFINITE), 0).astype(np.uint16)
        return columns | {"excluded": excluded, "token": drafts.flatten().cpu().numpy()}

    def _confidence(self, hidden: Tensor) -> Columns:
        columns: Columns = {}
        if self.head is not None:
            columns["confidence"] = self.head.logits(hidden).flatten().cpu().numpy()
        if self.keep_hidden:
            columns["hidden"] = hidden.flatten(0, 1).float().cpu().numpy()
        return columns

    def _params(self, slots: Sequence[_Slot]) -> Truncation:
        requests = [s.request for s in slots]
        return Truncation(
            temperature=self._uniforms([r.temperature for r in requests]),
            top_k=self._tensor([r.top_k for r in requests]),
            top_p=self._uniforms([r.top_p for r in requests]),
            min_p=self._uniforms([r.min_p for r in requests]),
        )

    def _tensor(self, values: Any) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.cache.keys.device)

    def _uniforms(self, values: Any) -> Tensor:
        array = np.asarray(values, dtype=np.float64)
        return torch.from_numpy(array).to(self.cache.keys.device)

    def _synchronize(self) -> None:
        if self.cache.keys.is_cuda:
            torch.cuda.synchronize(self.cache.keys.device)


def judge(
    logits: Tensor,  # [rows, K + 1, vocab], of the target, behind the last token and each draft
    params: Truncation,  # [rows]
    drafts: Tensor,  # [rows, K]
    proposal: _Proposal | None,
    uniforms: Tensor,  # [rows, ..., last: recovery or bonus]
) -> _Verdict:
    """Take the verdict: exact rejection sampling, then the recovered or the bonus token."""
    rows, width, _ = logits.shape
    K = width - 1
    index = torch.arange(rows, device=logits.device)
    p = sampling.target_distribution(
        logits.flatten(0, 1), params.rows(index.repeat_interleave(width))
    )
    probs, tokens = (x.view(rows, width, -1) for x in (p.probs, p.tokens))
    if proposal is None:
        choice = sampling.draw(probs[:, 0], uniforms[:, -1])
        return _Verdict(np.zeros(rows, dtype=np.int64), _pick(tokens[:, 0], choice), {})
    drafted = sampling.Support(
        probs[:, :K].flatten(0, 1), tokens[:, :K].flatten(0, 1), dense=p.dense
    )
    q = proposal.q.flatten(0, 1)
    q_on_support = drafted.select(q)
    p_drawn = drafted.prob(drafts.flatten())
    q_drawn = q.gather(1, drafts.flatten()[:, None])[:, 0]
    first = (uniforms.shape[1] - 1) // 2  # drafting took as many uniforms as it drew tokens
    accepted = sampling.count_accepted(
        p_drawn.view(rows, K), q_drawn.view(rows, K), uniforms[:, first : first + K]
    )
    padded = torch.cat((q_on_support.view(rows, K, -1), torch.zeros_like(probs[:, :1])), dim=1)
    if proposal.admitted is not None:
        # Behind the last admitted draft the target's own token follows, as the bonus does.
        accepted = torch.minimum(accepted, proposal.admitted)
        sent = torch.arange(width, device=logits.device) < proposal.admitted[:, None]
        padded = torch.where(sent[:, :, None], padded, 0.0)
    left = sampling.residual(probs[index, accepted], padded[index, accepted])
    choice = sampling.draw(left, uniforms[:, -1])
    columns = {
        "overlap": sampling.overlap(drafted.probs, q_on_support),
        "accept_prob": sampling.accept_probability(p_drawn, q_drawn),
        **target_features(drafted, proposal.logits.flatten(0, 1)),
    }
    return _Verdict(
        accepted.cpu().numpy(),
        _pick(tokens[index, accepted], choice),
        {name: values.cpu().numpy() for name, values in columns.items()},
        drafted,
    )


def _pick(tokens: Tensor, choice: Tensor) -> list[int]:
    picked: list[int] = tokens.gather(1, choice[:, None])[:, 0].tolist()
    return picked
