"""The figure of a learned method: its accuracy per step and its residual polynomial."""

import io
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from lfom.report.files import write_whole
from lfom.report.plots import SETTINGS
from lfom.report.style import colour
from lfom.solving.certificate import residual_polynomials
from lfom.solving.method import LearnedMethod
from lfom.solving.steps import Register


def plot_method(method: LearnedMethod, path: Path) -> None:
    """Write the figure as PNG; the same method gives the same bytes."""
    certified = method.certificate is not None
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams
        settings.update(SETTINGS)
        figure = Figure(figsize=(9.6 if certified else 5.2, 3.8), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, 2 if certified else 1, squeeze=False)[0]
        _accuracy(axes[0], method)
        figure.suptitle(f"{method.structure.name}, {method.steps} steps", fontsize=10)
        if certified:
            _polynomial(axes[1], method)
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=160, metadata={"Software": None})
    write_whole(path, content.getvalue())


def _accuracy(axes: Axes, method: LearnedMethod) -> None:
    accuracy = method.record.accuracy
    steps = np.arange(len(accuracy.median))
    axes.fill_between(steps, accuracy.lower, accuracy.upper, color=colour(1), alpha=0.2, linewidth=0)
    axes.plot(steps, accuracy.median, color=colour(1), marker="o", markersize=4)
    axes.set_yscale("log")
    axes.set_xlabel("step")
    loss = method.kind == "convex losses"
    axes.set_ylabel("excess loss / start's" if loss else "energy norm of the error / start's")
    axes.set_title(f"{accuracy.problems} problems {accuracy.how}: median, quartiles", loc="left", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _polynomial(axes: Axes, method: LearnedMethod) -> None:
    certificate, coefficients = method.certificate, method.plan.coefficients
    assert certificate is not None
    assert isinstance(coefficients, Register)
    end, (low, high) = certificate.reach[-1], certificate.seen
    t = np.linspace(0, 1.05 * max(end, high), 1000)
    alpha, gamma = (np.asarray(x, float).tolist() for x in (coefficients.alpha, coefficients.gamma))
    p = residual_polynomials(alpha, gamma, t)[-1]
    axes.axvspan(low, high, color=colour(3), alpha=0.15, linewidth=0, label="eigenvalues seen in learning")
    for level in (-1, 1):
        axes.axhline(level, color=colour(7), linewidth=0.8, linestyle="--")
    axes.plot(t, p, color=colour(2), label=f"residual polynomial p, {method.steps} steps")
    axes.axvline(end, color=colour(0), linewidth=0.9, label=f"contracts below {end:.4g}")
    axes.set_ylim(-1.6, 1.6)
    axes.set_xlim(0, t[-1])
    axes.set_xlabel("eigenvalue t of M A")
    axes.set_ylabel("p(t)")
    axes.legend(loc="upper center", fontsize=8, frameon=False)
    axes.set_title("error after the last step = p(M A) times the first", loc="left", fontsize=9)
