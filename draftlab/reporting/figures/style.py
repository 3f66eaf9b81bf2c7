"""How figures look, and how one becomes inline SVG.

matplotlib's object interface only: nothing here touches pyplot, and rcParams are set for the
length of a call. Colours are those of Okabe and Ito (2008), which colour-blind readers tell
apart; in the page they are CSS variables, so that a dark page can lighten them.
"""

from __future__ import annotations

import functools
import html
import io
import re
import warnings
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")

INK, MUTED, GRID = "#1b1b1f", "#6b6b76", "#d8d8de"
COLOURS = {
    "blue": "#0072b2",
    "orange": "#e69f00",
    "green": "#009e73",
    "red": "#d55e00",
    "purple": "#cc79a7",
    "sky": "#56b4e9",
}
_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid"} | {v: k for k, v in COLOURS.items()}

WIDTH = 4.8
"""Inches: at the width of a phone, 9 point text is still about 8 pixels high."""
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "draftlab",
    "text.parse_math": False,  # a name may hold a dollar sign
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.labelsize": 9.0,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
}


class Drawing(NamedTuple):
    """A figure of the report."""

    name: str
    title: str
    plot: Callable[..., tuple[Figure, pl.DataFrame]]
    """Takes what it draws; returns the figure and its table."""
    caption: Callable[[pl.DataFrame], str]
    """From the table; holds n."""
    alt: Callable[[pl.DataFrame], str]
    """What a reader who cannot see the figure must know, from the table."""
    how_to_read: str


def styled(plot: Callable[P, T]) -> Callable[P, T]:
    """Run a plot under our style, and leave matplotlib's own as it was."""

    @functools.wraps(plot)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        import matplotlib as mpl

        with mpl.rc_context(STYLE):  # type: ignore[arg-type]
            return plot(*args, **kwargs)

    return run


def new_figure(height: float) -> Figure:
    """Return an empty figure of the page's width; height in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def new_axes(height: float) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes; height in inches."""
    figure = new_figure(height)
    return figure, figure.subplots()


def add_legend(figure: Figure, axes: Axes) -> None:
    """Put the legend above the axes, where there is something to tell apart."""
    handles, names = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, names, loc="outside upper left", ncols=_legend_columns(names))


def _legend_columns(names: Sequence[str]) -> int:
    """Return how many columns of a legend fit the width, at most three."""
    for ncols in range(min(3, len(names)), 1, -1):
        longest = [max(map(len, part)) for part in _split(names, ncols)]
        if sum(_LEGEND_HANDLE + _LEGEND_LETTER * length for length in longest) <= WIDTH:
            return ncols
    return 1


def _split(names: Sequence[str], ncols: int) -> list[Sequence[str]]:
    """Deal names into columns as matplotlib does: the first columns are the longer ones."""
    rows, more = divmod(len(names), ncols)
    ends = [(i + 1) * rows + min(i + 1, more) for i in range(ncols)]
    return [names[start:end] for start, end in zip([0, *ends], ends, strict=False)]


_LEGEND_HANDLE, _LEGEND_LETTER = 0.57, 0.055
"""Inches that a column of a legend takes beside its names, and for each of their letters."""


def _number_ids(text: str) -> str:
    """Give markers and clips numbers as ids; matplotlib hashes what lies behind printed digits."""
    ids = dict.fromkeys(re.findall(r'id="([mp][0-9a-f]{10})"', text))
    short = {old: f"{old[0]}{i}" for i, old in enumerate(ids)}
    return re.sub(r"(?<=[\"#])[mp][0-9a-f]{10}\b", lambda m: short.get(m[0], m[0]), text)


def to_svg(figure: Figure, name: str, title: str, description: str) -> str:
    """Return a figure as SVG to stand inside HTML.

    Text stays text, ids begin with ``name``, nothing in it depends on the time, and colours
    are CSS variables with the printed colour as what holds without them.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    canvas = FigureCanvasSVG(figure)
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context(STYLE), warnings.catch_warnings():  # type: ignore[arg-type]
        # text stays text: the reader's browser has the glyphs that our font lacks
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        engine = figure.get_layout_engine()
        if engine is not None:
            engine.execute(figure)  # ticks settle in it
            figure.set_layout_engine("none")  # printing would lay out all once more
        # savefig would draw all once more
        canvas.print_svg(buffer, metadata=nothing)  # type: ignore[no-untyped-call]
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"font-family: ?[^;\"]*;?|(font: [^;\"]*?) ?'DejaVu Sans'[^;\"]*", r"\1", text)
    text = _number_ids(text)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text).replace("url(#", f"url(#{name}-")
    for color, variable in _VARIABLES.items():
        text = text.replace(color, f"var(--{variable}, {color})")
    box = re.search(r'viewBox="([^"]+)"', text)
    assert box is not None
    head = (
        f'<svg role="img" aria-labelledby="{name}-title {name}-desc" viewBox="{box[1]}">\n'
        f'<title id="{name}-title">{html.escape(title)}</title>\n'
        f'<desc id="{name}-desc">{html.escape(description)}</desc>'
    )
    return re.sub(r"<svg[^>]*>", lambda _: head, text, count=1).strip()
