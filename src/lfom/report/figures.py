"""Figures where matplotlib is installed; everything else of a report is written without it."""

from pathlib import Path

from lfom.core.extras import MissingExtra, needed

WITHOUT = (
    "figures are not drawn as PNG and SVG: that needs matplotlib. Install it with pip install 'lfom[report]'"
)


def can_draw() -> bool:
    """Whether matplotlib is there."""
    try:
        needed("matplotlib", "drawing figures")
    except MissingExtra:
        return False
    return True


def ready_to_draw() -> None:
    """Import what draws, while something else is computed: it takes a third of a second."""
    if can_draw():
        import lfom.report.plots  # noqa: F401


def draw_experiment(folder: Path) -> bool:
    """figure.png and figure.svg of an experiment folder; False where they cannot be drawn."""
    if not can_draw():
        return False
    from lfom.report.plots import plot_experiment

    plot_experiment(folder)
    return True
