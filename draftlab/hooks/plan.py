"""Which columns of the log a vLLM configuration offers, and why it lacks the others.

Known from vLLM 0.32 and 0.33. A speculator that is not in the table is taken as an ordinary
drafter if it has the parts that the hook needs.
"""

from __future__ import annotations

from dataclasses import dataclass

FROM_LOGITS = ("logit_qmax", "top2_margin", "entropy", "logit_q_sampled")
LIVE = ("live_feature", "live_prediction")
TARGET = ("overlap", "accept_prob")
FLOATS = {"logits": FROM_LOGITS, "live": LIVE, "confidence": ("confidence",), "target": TARGET}
"""Columns that come from the device as floats, by what they are made from."""
RECORDED = "recorded"


@dataclass(frozen=True)
class Speculator:
    """What one of vLLM's speculators lets a hook see."""

    logits: bool = True
    """It caches the draft logits under probabilistic drafting."""
    shadow: bool = True
    """It predicts acceptance also where adaptive verification is off."""
    predicts: bool = True
    """Its estimator, where vLLM builds one, is ever given a distribution."""
    source: str = "head"
    """Distribution that the cached logits describe."""
    verdicts: bool = True
    """It is told the verdicts; without them there is nothing to log."""
    remark: str = ""


SPECULATORS: dict[str, Speculator] = {
    "StandaloneARSpeculator": Speculator(),
    "EagleSpeculator": Speculator(),
    "MTPSpeculator": Speculator(),
    "MultiModuleMTPSpeculator": Speculator(),
    "Gemma4Speculator": Speculator(),
    "DFlashSpeculator": Speculator(),
    "DSparkSpeculator": Speculator(),
    "DFlash2Speculator": Speculator(
        shadow=False,
        source="candidates",
        remark="its candidate walk predicts acceptance only under adaptive verification",
    ),
    "LiLiCorrSpeculator": Speculator(
        shadow=False,
        source="candidates",
        remark="its candidate walk predicts acceptance only under adaptive verification",
    ),
    "XPressSpeculator": Speculator(
        logits=False,
        shadow=False,
        predicts=False,
        remark="greedy Jacobi passes: its logits buffer is never written",
    ),
    "NgramGPUSpeculator": Speculator(
        logits=False,
        shadow=False,
        verdicts=False,
        remark="n-gram look-up has no draft distribution",
    ),
    "ExtractHiddenStatesSpeculator": Speculator(
        logits=False,
        shadow=False,
        verdicts=False,
        remark="it extracts hidden states and drafts nothing",
    ),
}


@dataclass(frozen=True)
class Facts:
    """What decides on the columns."""

    speculator: str
    """Name of vLLM's class."""
    drafting: str
    """greedy or probabilistic."""
    adaptive: bool = False
    confidence_head: bool = False
    local_argmax: bool = False
    """`use_local_argmax_reduction`: each rank's best token, no logits."""
    fused: bool = False
    """DSpark draws all positions in one kernel, which predicts nothing."""
    shadow: bool = True
    """The user lets vLLM's estimator run where nothing is trimmed by it."""
    tokens: bool = False
    target: bool = False

    @property
    def known(self) -> Speculator:
        """What the table says, or an ordinary drafter."""
        return SPECULATORS.get(self.speculator, Speculator())

    @property
    def has_logits(self) -> bool:
        """Whether draft logits survive drafting."""
        return self.drafting == "probabilistic" and self.known.logits and not self.local_argmax

    @property
    def has_estimator(self) -> bool:
        """Whether vLLM's own estimator runs, for real or in the shadow."""
        if self.local_argmax or self.fused or not self.known.predicts:
            return False
        if self.confidence_head or not self.known.verdicts:
            return False
        return self.adaptive or (self.shadow and self.known.shadow)

    @property
    def source(self) -> str:
        """The run's feature_source."""
        return self.known.source if self.has_logits else "estimator"


def place_floats(facts: Facts) -> dict[str, slice]:
    """Return where the columns of each group of `FLOATS` that a run has lie side by side.

    Examples
    --------
    >>> place_floats(Facts("DSparkSpeculator", "probabilistic", shadow=False, confidence_head=True))
    {'logits': slice(0, 4, None), 'confidence': slice(4, 5, None)}
    """
    had = {
        "logits": facts.has_logits,
        "live": facts.has_estimator,
        "confidence": facts.confidence_head,
        "target": facts.target,
    }
    places, start = {}, 0
    for group, names in FLOATS.items():
        if had[group]:
            places[group] = slice(start, start + len(names))
            start += len(names)
    return places


def plan_columns(facts: Facts) -> dict[str, str]:
    """Return for every optional column ``recorded`` or the reason why it stays null.

    Examples
    --------
    >>> plan_columns(Facts("EagleSpeculator", "greedy"))["entropy"]
    "draft_sample_method is 'greedy': no draft logits survive"
    """
    if not facts.known.verdicts:
        return dict.fromkeys((*FROM_LOGITS, *LIVE, "confidence", *TARGET), facts.known.remark)
    columns = _from_logits(facts)
    columns |= dict.fromkeys(LIVE, RECORDED if facts.has_estimator else _why_no_estimator(facts))
    head = RECORDED if facts.confidence_head else "no trained confidence head in use"
    columns["confidence"] = head
    why_not = "off: set DRAFTLAB_TARGET=1"
    columns |= dict.fromkeys(TARGET, RECORDED if facts.target else why_not)
    columns["token"] = RECORDED if facts.tokens else "off for privacy: set DRAFTLAB_TOKENS=1"
    return columns


def _from_logits(facts: Facts) -> dict[str, str]:
    if facts.has_logits:
        return dict.fromkeys(FROM_LOGITS, RECORDED)
    columns = dict.fromkeys(FROM_LOGITS, _why_no_logits(facts))
    if facts.has_estimator:
        stored = "recorded, as the estimator stored it: float32, clipped at 40"
        columns |= {"logit_qmax": stored, "logit_q_sampled": stored}
    return columns


def _why_no_logits(facts: Facts) -> str:
    if not facts.known.logits:
        return facts.known.remark
    if facts.local_argmax:
        return "use_local_argmax_reduction: draft logits are never gathered"
    return f"draft_sample_method is {facts.drafting!r}: no draft logits survive"


def _why_no_estimator(facts: Facts) -> str:
    if facts.local_argmax:
        return "use_local_argmax_reduction: vLLM's estimator refuses it"
    if facts.confidence_head:
        return "a trained confidence head takes the estimator's place"
    if facts.fused:
        return "the drafter draws all positions in one kernel that predicts nothing"
    if not facts.known.shadow:
        return facts.known.remark
    return "off: DRAFTLAB_SHADOW=0"
