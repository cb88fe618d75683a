"""What a status says. Zero and above: the value is good for what the text says; below: it failed.

The last digit is the path taken, the tens say how a tolerance fared.
"""

from typing import Any

PATHS = (
    "the method's steps, within its promise",
    "the method's steps, checked afterwards",
    "the method's steps on the rescaled problem, checked afterwards",
    "fallback",
)
CERTIFIED, CHECKED, RESCALED, FALLBACK = range(4)
MET, NOT_MET = 10, 20
NOT_FINITE, NOT_DEFINITE, NO_PROGRESS, OUT_OF_RANGE = -1, -2, -3, -4

OUTCOMES = {
    0: "did the steps asked for, fewer if solved to rounding",
    MET: "tolerance met",
    NOT_MET: "tolerance not met in the steps allowed, as far as rounding lets it be seen",
}
MEANING: dict[int, str] = {
    **{tens + path: f"{said}: {text}" for tens, said in OUTCOMES.items() for path, text in enumerate(PATHS)},
    NOT_FINITE: "failed: the problem or its start holds NaN or infinity, or its matrix overflows; the value is the start",
    NOT_DEFINITE: "failed: not positive definite, or singular; the value is no worse than the start",
    NO_PROGRESS: "failed: no step improved on the start, as far as rounding lets it be seen; the start is the value",
    OUT_OF_RANGE: "failed: steps from the start, or products with it, overflow or are below the smallest normal number; the "
    "value is the start. Scale the problem",
}


def failed(status: Any) -> Any:
    """Whether what was asked for was not done."""
    return (status < 0) | (status >= NOT_MET)
