"""Published examples and budget policies, each with its exact total variation from the target."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from draftlab.studies.audit import exact
from draftlab.studies.audit.exact import Toy, fractions

if TYPE_CHECKING:
    from collections.abc import Callable


class Proof(NamedTuple):
    """What theory says of a rule, and what the enumeration finds."""

    name: str
    lossless: bool
    total_variation: Fraction | float
    """Exact."""
    passed: bool
    """Both agree."""
    reason: str


def prove() -> list[Proof]:
    """Return the published examples in exact arithmetic ."""
    half = fractions(0.5, 0.5)
    examples = (
        ("trim_by_drawn_token", half, fractions(0.2, 0.8), [False, True], "1/10",
         "announcement article: trimmed where q of the drawn token < 0.5, (0.5, 0.5) comes out as "
         "(0.4, 0.6)"),
        ("verify_one_token_only", fractions(0.7, 0.3), half, [True, False], "3/20",
         "DSpark paper, appendix A: verified only if the first token was drawn, (0.7, 0.3) comes "
         "out as (0.85, 0.15)"),
        ("trim_by_q_alone", half, fractions(0.2, 0.8), [False, False], "0",
         "the same position trimmed whatever was drawn: the target's own token comes out"),
        ("verify_always", half, fractions(0.2, 0.8), [True, True], "0",
         "rejection sampling keeps the target (Leviathan et al., 2023)"),
    )  # fmt: skip
    rows = []
    for name, p, q, admitted, wanted, reason in examples:
        error = exact.total_variation(exact.output_distribution(p, q, admitted), p)
        lossless = wanted == "0"
        rows.append(Proof(name, lossless, error, error == Fraction(wanted), reason))
    return rows


def _toy(*conditionals: tuple[str, str], running_minimum: bool | None = None) -> Toy:
    """Return a request of two tokens and two drafts; conditionals by the first drawn token.

    p = (0.7, 0.3) and q = (0.5, 0.5) everywhere. ``conditionals`` are (c_0, c_1) behind token 0
    and behind token 1; with ``running_minimum`` set they are made hybrid survivals.
    """
    p, q = fractions(0.7, 0.3), fractions(0.5, 0.5)
    tables = [[Fraction(c) for c in pair] for pair in conditionals]

    def survivals(drawn: tuple[int, ...]) -> list[Any]:
        before = tables[drawn[0]]
        if running_minimum is None:
            return exact.products(before)
        # min(1, p/q) of the first token: 1 behind token 0, 3/5 behind token 1
        after = [min(p[drawn[0]] / q[drawn[0]], Fraction(1)), Fraction(1)]
        return exact.hybrid(before, after, running_minimum=running_minimum)

    return Toy(lambda _: p, lambda _: q, survivals, 2)


def _steady(first: str, second: str = "1/2") -> Toy:
    """Return a request whose survivals do not depend on its draws."""
    return _toy((first, second), (first, second))


def _noise(name: str) -> Fraction | float:
    p, q = fractions(0.5, 0.3, 0.2), fractions(0.2, 0.2, 0.6)
    return exact.noise_error(p, q, exact.NOISE[name])


def enumerate_policies() -> list[Proof]:
    """Return what policies over two requests do to the joint output, by exact enumeration.

    Each row has the total variation of the joint output (three tokens a request) from the
    target; ``passed`` says that it is 0 exactly where theory wants 0.
    """
    live = _toy(("1/2", "1"), ("1/2", "0"))  # the second survival tells the first token
    draw = _toy(("1", "1/2"), ("3/5", "1/2"))  # the first one does: it reads accept_prob
    linear = [Fraction(10 + 2 * b) for b in range(5)]
    stairs = [Fraction(c) for c in (10, 14, 14, 19, 19)]
    early = [Fraction(c) for c in (14, 14, 19, 19, 19)]
    rising = _toy(("1/4", "1"), ("1/4", "1"), running_minimum=False)
    falling = _toy(("1/4", "1"), ("1/4", "1"), running_minimum=True)
    cases: tuple[tuple[str, bool, Callable[[], Any], str], ...] = (
        ("fixed_budget_merge", True,
         lambda: exact.joint_error([live, _steady("1/2")], exact.merge(2)),
         "a budget that reads no draw of the step, given to the best survivals of all requests"),
        ("same_step_search_linear_cost", True,
         lambda: exact.joint_error([live, _steady("1/4")], exact.search(linear)),
         "under linear cost a draft is admitted or not by better survivals alone, and a request's "
         "own later drafts are never better"),
        ("same_step_search_stairs", False,
         lambda: exact.joint_error([live, _steady("1/4")], exact.search(stairs)),
         "padding makes a later draft pay for an earlier one: its survival reads x_k"),
        ("same_step_early_stop_stairs", True,
         lambda: exact.joint_error(
             [live, _steady("1/4")], exact.search(early, early_stop=True)),
         "stopping at the first fall of the rate reads better survivals alone (DSpark, "
         "algorithm 1)"),
        ("predictor_reads_the_draw", False,
         lambda: exact.joint_error([draw, _steady("4/5")], exact.merge(1)),
         "the survival that decides on x_k reads x_k"),
        ("hybrid_with_running_minimum", True,
         lambda: exact.joint_error([falling, _steady("4/5")], exact.merge(1)),
         "survivals fall along the proposal, so that no later draw overtakes"),
        ("hybrid_without_running_minimum", False,
         lambda: exact.joint_error([rising, _steady("4/5")], exact.merge(1)),
         "a survival that rises behind a lucky draw overtakes the other request"),
        ("stable_order_at_ties", True,
         lambda: exact.joint_error([live, _steady("1/2")], exact.merge(1)),
         "ties go by position, then slot"),
        ("unstable_order_at_ties", False,
         lambda: exact.joint_error([live, _steady("1/2")], exact.merge(1, prefer_later=True)),
         "a conditional of exactly 1 ties a draft with the next, whose survival reads x_k"),
        ("fresh_noise", True, lambda: _noise("independent"), "every uniform is used once"),
        ("noise_reused_between_steps", False, lambda: _noise("reused_between_steps"),
         "two steps of a request share their uniforms"),
        ("noise_shared_by_drafting_and_recovery", False,
         lambda: _noise("shared_by_drafting_and_recovery"),
         "the uniform that drew the rejected draft draws its replacement"),
    )  # fmt: skip
    rows = []
    for name, lossless, error_of, reason in cases:
        error = error_of()
        rows.append(Proof(name, lossless, error, (error == 0) is lossless, reason))
    return rows
