"""Colours, marks and numbers, the same in the plots and on the page."""

import colorsys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, count, cycle

# (on white, on dark), told apart with the common colour-vision deficiencies as far as so many can be.
PALETTE = (
    ("#111111", "#f2f2f2"), ("#0072b2", "#5cb3ea"), ("#d55e00", "#ff9248"), ("#009e73", "#2fcf9f"),
    ("#aa4499", "#e48fd5"), ("#2f9fdc", "#a5dcff"), ("#8c6d1f", "#d6b95c"), ("#777777", "#a9a9a9"),
    ("#332288", "#a99df5"), ("#882255", "#ea86b0"), ("#117777", "#5fcaca"), ("#cc6677", "#f7a1ad"),
    ("#a08c00", "#eada6a"), ("#6f3f1f", "#c99a78"),
)  # fmt: skip
# The curves that many figures share keep their colour in all of them.
SHARED = (
    "CGD", "Memformer", "Linear Transformer", "exact optimum", "Preconditioned CGD", "NAG", "Momentum GD", "GD",
)  # fmt: skip


@dataclass(frozen=True)
class Mark:
    """How a kind of training is drawn; the same shapes in the plots and on the page."""

    shape: str
    matplotlib: str
    filled: bool
    size: float
    width: float


MARKS = {
    "paper": Mark("circle", "o", True, 5.0, 1.3),
    "converged": Mark("square", "s", True, 5.0, 2.0),
    "published": Mark("diamond", "D", False, 5.5, 1.1),
    "none": Mark("dot", "o", True, 2.8, 1.3),
}


def marks(trainings: Iterable[str]) -> dict[str, Mark]:
    """The mark of every training: names of a user's own take ours in turn, those that are free first."""
    names = list(dict.fromkeys(trainings))
    free = cycle(sorted(MARKS, key=lambda name: (name == "none", name in names)))
    return {name: MARKS[name] if name in MARKS else MARKS[next(free)] for name in names}


def colour_slots(curves: Iterable[str]) -> dict[str, int]:
    """A colour number for every curve name: fixed for the shared names, the free ones in order."""
    names = list(dict.fromkeys(curves))
    fixed = {name: SHARED.index(name) for name in names if name in SHARED}
    unshared = range(len(SHARED), len(PALETTE))
    unused = (slot for slot in range(len(SHARED)) if slot not in fixed.values())
    free = chain(unshared, unused, count(len(PALETTE)))
    return fixed | {name: next(free) for name in names if name not in fixed}


def colour(slot: int, dark: bool = False) -> str:
    """The colour of a slot; past the palette, hues a golden angle apart."""
    if slot < len(PALETTE):
        return PALETTE[slot][dark]
    red, green, blue = colorsys.hls_to_rgb(slot * 0.381966 % 1, 0.7 if dark else 0.36, 0.6)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def number(value: float) -> str:
    """Three decimals, or three digits where the value is very small or large.

    >>> number(-1.60274), number(0.00002), number(250000.0), number(4.0)
    ('-1.603', '2.00e-05', '2.50e+05', '4.000')
    """
    if value != 0 and not 1e-3 <= abs(value) < 1e4:
        return f"{value:.2e}"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"


def position(x: float) -> str:
    """An x as a reader would write it.

    >>> position(4.0), position(0.25), position(100000.0)
    ('4', '0.25', '100,000')
    """
    return f"{int(x):,}" if x == int(x) and abs(x) < 1e9 else f"{x:,.4g}"


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(7.26), duration(192), duration(4020)
    ('7.3 s', '3 min 12 s', '1 h 7 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
