"""The figure of a method: its accuracy per step where it was learned, and its residual polynomial."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from lfom.core.checks import InputError
from lfom.core.files import write_whole
from lfom.core.methods import Algorithm, Learned
from lfom.report.plots import our_settings, saved
from lfom.report.style import colour
from lfom.solving.certificate import Certificate, residual_polynomials


def plot_method(method: Algorithm, path: Path) -> None:
    """Write the figure as PNG; the same method gives the same bytes."""
    certificate = method.certificate
    facts = method.facts
    panels = [] if facts is None else [lambda axes: _accuracy(axes, facts)]
    panels += [lambda axes: _polynomial(axes, method, certificate)] if certificate is not None else []
    if not panels:
        raise InputError(
            "nothing is known of this method to draw: it was not learned, and has no polynomial."
        )
    with our_settings():
        figure = Figure(figsize=(9.6 if len(panels) > 1 else 5.2, 3.8), layout="constrained")
        FigureCanvasAgg(figure)
        for draw, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
            draw(axes)
        name = "" if method.structure is None else f"{method.structure.name}, "
        figure.suptitle(f"{name}{method.steps} steps", fontsize=10)
        write_whole(path, saved(figure))


def _accuracy(axes: Axes, facts: Learned) -> None:
    accuracy = facts.record.accuracy
    steps = np.arange(len(accuracy.median))
    axes.fill_between(steps, accuracy.lower, accuracy.upper, color=colour(1), alpha=0.2, linewidth=0)
    axes.plot(steps, accuracy.median, color=colour(1), marker="o", markersize=4)
    axes.set(yscale="log", xlabel="step", ylabel=f"{facts.kind.measure} / start's")
    axes.set_title(f"{accuracy.problems} problems {accuracy.how}: median, quartiles", loc="left", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _polynomial(axes: Axes, method: Algorithm, certificate: Certificate) -> None:
    end, seen = certificate.reach[-1], certificate.seen
    t = np.linspace(0, 1.05 * max(end, 0.0 if seen is None else seen[1]), 1000)
    p = residual_polynomials(method, t)[-1]
    if seen is not None:
        axes.axvspan(*seen, color=colour(3), alpha=0.15, linewidth=0, label="eigenvalues seen in learning")
    for level in (-1, 1):
        axes.axhline(level, color=colour(7), linewidth=0.8, linestyle="--")
    axes.plot(t, p, color=colour(2), label=f"residual polynomial p, {method.steps} steps")
    axes.axvline(end, color=colour(0), linewidth=0.9, label=f"contracts below {end:.4g}")
    axes.set(ylim=(-1.6, 1.6), xlim=(0, t[-1]), xlabel="eigenvalue t of M A", ylabel="p(t)")
    axes.legend(loc="upper center", fontsize=8, frameon=False)
    axes.set_title("error after the last step = p(M A) times the first", loc="left", fontsize=9)
