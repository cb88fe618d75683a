"""Figure ExtractedLFOMvsCGD: a learned first-order method with diagonal coefficients against CGD."""

from lfom.experiments.experiment import Experiment
from lfom.experiments.fixed_batches import ISOTROPIC, both_rows, learned_lfom
from lfom.experiments.rows import curve_rows
from lfom.experiments.statistics import Claims, compare, difference, lower_in_all_runs, near, written
from lfom.experiments.workbench import DEPTHS, Outcome, Workbench, keys

GROUPS = ((10, 50, 100), (1000,))  # sizes that are fitted together
TOGETHER = {size: group for group in GROUPS for size in group}


class ExtractedLfom(Experiment):
    name = "ExtractedLFOMvsCGD"
    title = "Learned LFOM against CGD"
    section = "5, Figure ExtractedLFOMvsCGD"
    shows = (
        "The coefficients of a first-order method learned from 10, 50, 100 or 1,000 prompts of isotropic data, "
        "on those prompts and on fresh ones, against CGD, which computes its own for every prompt."
    )
    trained = (
        "Diagonal coefficients Lambda_j^k of the plain gradients (A the identity), d = 5, n = 20, untied: 5 to 50 "
        "numbers, fitted to a fixed set of prompts with one query each. paper: 1,000 Adam steps; converged: "
        "least squares on the set itself."
    )

    def run(self, bench: Workbench) -> Outcome:
        data = bench.data(ISOTROPIC)
        fits = [(learned_lfom, bench, t, sizes, DEPTHS) for t in bench.trainings for sizes in GROUPS]
        bench.side_by_side([(bench.curves, (), data, DEPTHS, "isotropic"), *fits])
        rows = curve_rows(bench.curves((), data, label="isotropic"), self.name)
        claims = Claims("5")
        for training in bench.trainings:
            beaten, matched, steady, on_own, on_fresh, gaps = [], [], [], [], [], []
            for size, group in TOGETHER.items():
                own, fresh, cgd, cgd_fresh, _ = learned_lfom(bench, training, group, DEPTHS).at_size(size)
                rows += both_rows(f"LFOM, batch {size}", training, own, fresh)
                lower = {d: lower_in_all_runs(own[d], cgd[d]) for d in DEPTHS}
                close = {d: near(fresh[d], cgd_fresh[d], 0.02) for d in DEPTHS}
                beaten += [*lower.values()]
                matched += [*close.values()]
                if size >= 50:
                    steady.append(all(near(fresh[d], own[d], 0.1) for d in DEPTHS))
                on_own.append(f"B={size}: depths {[d for d in lower if lower[d]]} ({compare(own, cgd)})")
                met = [d for d in close if close[d]]
                on_fresh.append(f"B={size}: depths {met} ({compare(fresh, cgd_fresh)})")
                gaps.append(f"B={size}: {written(difference(fresh[4], own[4]))}")
            claims.test(
                f"learned-lfom-beats-cgd-on-its-own-prompts-{training}",
                f"A learned LFOM ({training} training) matches or beats CGD on the prompts it was learned from.",
                "loss on the training prompts below CGD's in every run, for every batch size and depth",
                beaten,
                "below CGD at " + "; ".join(on_own),
            )
            claims.test(
                f"learned-lfom-matches-cgd-fresh-{training}",
                f"A learned LFOM ({training} training) matches or beats CGD on fresh prompts.",
                "log loss on the same fresh prompts at most 0.02 above CGD's, for every batch size and depth",
                matched,
                "matches CGD at " + "; ".join(on_fresh),
            )
            claims.test(
                f"learned-lfom-generalises-{training}",
                f"A learned LFOM ({training} training) generalises from moderate to large batches (50 or more).",
                "log loss on fresh prompts at most 0.1 above that on the training prompts on average over runs, at every depth, per size",
                steady,
                "fresh minus training at depth 4: " + "; ".join(gaps),
            )
        main = ["CGD|none", "exact optimum|none", *keys(bench.pairs("LFOM, batch 10", "LFOM, batch 1000"))]
        return Outcome(rows, claims, [*main, "LFOM, batch 10|published", "LFOM, batch 1000|published"])
