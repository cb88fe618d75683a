"""What the figures layers5 and layers7 share: more than four layers."""

from collections.abc import Sequence

from lfom.experiments.rows import Curves, curve_rows
from lfom.experiments.statistics import Claims, at_most, compare, values
from lfom.experiments.workbench import Outcome, Workbench, keys

KEEPS_UP = 0.1  # "keeps up with CGD": at most this much above it in log loss


def deeper(
    bench: Workbench, spectrum: Sequence[float], labels: dict[str, Sequence[int]], steps: int, label: str
) -> Outcome:
    """labels: depths by the label of their models and prompts; those of other figures are not made again."""
    trained = bench.pairs("Memformer", "Linear Transformer")
    found: Curves = {}
    for own, depths in labels.items():
        for pair, scores in bench.curves(trained, bench.data(spectrum), depths, own).items():
            found.setdefault(pair, {}).update(scores)
    claims, optimum = Claims("Appendix C"), found["exact optimum", "none"]
    for training in bench.trainings:
        ours, plain = found["Memformer", training], found["Linear Transformer", training]
        rule = f"log loss at most {KEEPS_UP} above CGD on the same fresh prompts at depths 1 to {steps}"
        asked = [d for d in ours if d <= steps]
        claims.add(
            f"{label}-keeps-up-{training}",
            f"The Memformer keeps up with CGD for {steps} steps ({training} training).",
            at_most(ours, found["CGD", "none"], KEEPS_UP, asked, rule=rule, listed="keeps up at depths"),
        )
        evidence = f"Memformer {compare(ours, optimum)}; Linear Transformer {compare(plain, optimum)}"
        claims.add(
            f"{label}-distance-to-optimum-{training}",
            f"Ours: how far {training} training ends from the exact optimum.",
            at_most(ours, optimum, 0.03, evidence=f"{evidence}; losses {values(ours)}"),
            "NOTES 3",
        )
    main = ["CGD|none", "exact optimum|none", "NAG, tuned|none", *keys(trained)]
    return Outcome(curve_rows(found), claims, main)
