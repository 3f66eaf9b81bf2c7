"""Keep a bounded random sample of (p, q) rows, for the audit of trimming rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from draftlab import schema
from draftlab.log.files import replace_file

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from draftlab.engine.sampling import Support

NUM_ROWS = 256
TOP_TOKENS = 1024
"""Tokens of q that a row keeps besides the target's support; the rest is one entry."""
TAIL = -1
FOLDER = "distributions"
_SCHEMA = schema.arrow_schema(FOLDER)


@dataclass
class DistributionSample:
    """A uniform sample of the observed draft positions of a run (algorithm R, Vitter 1985).

    Parameters
    ----------
    num_rows : int
        Rows kept at most, whatever the length of the run.
    seed : int
    """

    num_rows: int = NUM_ROWS
    seed: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list, init=False)
    _seen: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng([self.seed, self.num_rows])

    def add(
        self,
        columns: dict[str, Any],
        observed: np.ndarray[Any, Any],
        p: Support,
        q: Tensor,
    ) -> None:
        """Offer the verified positions of a step.

        Parameters
        ----------
        columns : dict
            Keys of the log, (n,) each.
        observed : (n,) bool
            Positions whose label is known: only their prefix is one of the output.
        p : Support
            Of the n rows.
        q : Tensor
            [n, vocab], what the drafts were drawn from.
        """
        for index in np.flatnonzero(observed).tolist():
            self._seen += 1
            place = self._seen - 1
            if place >= self.num_rows:
                place = int(self._rng.integers(self._seen))
            if place >= self.num_rows:
                continue
            row = {name: int(columns[name][index]) for name in _SCHEMA.names[:4]}
            row |= _row(p.tokens[index], p.probs[index], q[index])
            if place < len(self.rows):
                self.rows[place] = row
            else:
                self.rows.append(row)

    def write(self, run: Path) -> Path:
        """Write the table into the folder of a run; return its file."""
        ordered = sorted(self.rows, key=lambda row: (row["step"], row["slot"], row["position"]))
        table = pa.Table.from_pylist(ordered, schema=_SCHEMA)
        path = run / FOLDER / "part-00000.parquet"
        replace_file(path, lambda temporary: pq.write_table(table, temporary))
        return path


def _row(support: Tensor, probs: Tensor, q: Tensor) -> dict[str, Any]:
    """Return a row's tokens, p and q; what is not kept is summed under `TAIL`."""
    dense_p = np.zeros(len(q))
    dense_p[support.cpu().numpy()] = probs.double().cpu().numpy()
    dense_q = q.double().cpu().numpy()
    kept = np.zeros(len(dense_q), dtype=bool)
    most = min(TOP_TOKENS, len(dense_q))
    kept[np.argpartition(dense_q, -most)[-most:]] = True
    # a target without truncation has mass everywhere; its own top tokens then suffice too
    kept[np.argpartition(dense_p, -most)[-most:]] = True
    tokens = np.flatnonzero(kept)
    rest_p, rest_q = dense_p[~kept].sum(), dense_q[~kept].sum()
    if kept.all():
        return {"tokens": tokens, "p": dense_p, "q": dense_q}
    return {
        "tokens": np.append(tokens, TAIL),
        "p": np.append(dense_p[tokens], rest_p),
        "q": np.append(dense_q[tokens], rest_q),
    }
