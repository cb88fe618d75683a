"""Plots and the report, made from the results on disk and nothing else."""

from lfom.report.figures import can_draw, draw_experiment, ready_to_draw
from lfom.report.page import write_report
from lfom.report.results import is_finished, read_experiment
from lfom.report.verdicts import verdicts_markdown, write_verdicts

__all__ = [
    "is_finished", "can_draw", "draw_experiment", "read_experiment", "ready_to_draw", "verdicts_markdown", "write_report",
    "write_verdicts",
]  # fmt: skip
