"""The main figures with the spectrum of the paper's text, beside the one that its curves were made with."""

import functools
from collections.abc import Callable
from dataclasses import replace

from lfom.experiments import cg_with_preconditioning, cg_without_preconditioning, lfom_nonisotropic
from lfom.experiments.experiment import Experiment
from lfom.experiments.rows import Curves, score_rows
from lfom.experiments.statistics import Claims
from lfom.experiments.workbench import Outcome, Workbench
from lfom.prompts.distributions import PUBLISHED_SPECTRUM, TEXT_SPECTRUM
from lfom.report.results import Claim

Compared = Callable[..., tuple[Curves, Claims]]
FIGURES: dict[str, tuple[str, Compared]] = {  # by their prefix in the curves
    "cg_without_preconditioning": ("scalar A, ", cg_without_preconditioning.compared),
    "cg_with_preconditioning": ("register, ", cg_with_preconditioning.compared),
    "lfom_nonisotropic": ("", lfom_nonisotropic.compared),
}
MAIN = "lfom_nonisotropic"
SPECTRA = {"text": TEXT_SPECTRUM, "published": PUBLISHED_SPECTRUM}
LABELS = {"text": "text's spectrum", "published": "main"}
MEASURES = {"text": "log_loss", "published": "published_spectrum"}
SHOWN = ("CGD", "NAG, tuned", "Momentum GD, tuned", "exact optimum", "Memformer", "Linear Transformer")
SHARED = ("CGD", "NAG", "Momentum GD", "GD", "Preconditioned CGD", "exact optimum")  # of all figures


class TextSpectrum(Experiment):
    name = "text_spectrum"
    title = "The text's spectrum beside the published one"
    section = "3.3 (Setup)"
    shows = (
        "The text says eigenvalues (1, 1, 1/2, 1/4, 1); the published code draws U D z, which makes them (1, 1, 1/4, "
        "1/16, 1), and all published curves belong to the latter. Here are the three main figures with the text's "
        "spectrum, beside them the same with the published one, and every verdict with both. With the quick preset "
        "lfom_nonisotropic alone, without variants."
    )
    trained = "As in the three figures, with the same models, trainings, rules and rotations; only the spectrum differs."
    y_label = {
        "log_loss": "log of the mean squared error, text's spectrum",
        "published_spectrum": "the same, published spectrum",
    }

    def run(self, bench: Workbench) -> Outcome:
        rows, every, same = {}, [], Claims("3.3")
        figures, prompts = FIGURES, None
        if not bench.preset.long:
            figures = {MAIN: ("", functools.partial(lfom_nonisotropic.compared, variants=False))}
            prompts = bench.preset.prompts // 4  # the published spectrum's scores are kept, whoever made them
        for figure, (prefix, compared) in figures.items():
            found = {}
            for which, spectrum in SPECTRA.items():
                many = prompts if which == "text" else None
                curves, found[which] = compared(bench, bench.data(spectrum), LABELS[which], many)
                for (curve, training), scores in curves.items():
                    name = named(prefix, curve)
                    for row in score_rows(name, training, scores, measure=MEASURES[which]):
                        rows[name, training, row.x, row.run, row.measure] = row
            pairs = list(zip(found["text"], found["published"], strict=True))
            every += [side_by_side(figure, text, published) for text, published in pairs]
            same.test(
                f"{figure}-same-verdicts",
                f"The verdicts of {figure} are the same with the text's spectrum as with the published one.",
                "the verdict of each claim of the figure is the same with both spectra",
                [text.verdict == published.verdict for text, published in pairs],
                "; ".join(f"{text.id}: {_both(text, published)}" for text, published in pairs),
            )
        main = [f"{curve}|{training}" for curve in SHOWN for training in ("none", *bench.trainings)]
        return Outcome(list(rows.values()), [*same, *every], main)


def named(prefix: str, curve: str) -> str:
    return curve if curve.startswith(SHARED) else prefix + curve


def _both(text: Claim, published: Claim) -> str:
    return f"{text.verdict} with the text's spectrum, {published.verdict} with the published one"


def side_by_side(figure: str, text: Claim, published: Claim) -> Claim:
    """The claim with the text's spectrum; its evidence says what came out with the published one."""
    return replace(
        text,
        id=f"{figure}-{text.id}-text",
        claim=f"With the text's spectrum: {text.claim}",
        section=f"{text.section}, {figure}",
        evidence=f"{_both(text, published)}. Text's: {text.evidence}. Published: {published.evidence}",
    )
