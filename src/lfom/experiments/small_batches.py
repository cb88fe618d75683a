"""Figures batch_size_1 and batch_size_10: a Memformer trained on B prompts against CGD, on those and on fresh ones."""

from lfom.experiments.experiment import Experiment
from lfom.experiments.fixed_batches import SMALL, both_rows, memformers
from lfom.experiments.rows import curve_rows, published_rows, score_rows
from lfom.experiments.statistics import Claims, compare, lower, lower_in_all_runs, slug, values
from lfom.experiments.workbench import A_THEN_GAMMA, DEPTHS, WITH_PHASES, Outcome, Workbench, keys


class SmallBatch(Experiment):
    trainings = WITH_PHASES

    def __init__(self, size: int):
        prompts = "one prompt" if size == 1 else f"{size} prompts"
        self.size, self.name = size, f"batch_size_{size}"
        self.title = f"Batch size {size}: on its own prompts and on fresh ones"
        self.section = f"3.4, Figure {self.name}"
        self.shows = (
            f"What the paper's comparison leaves out: the model that beats CGD on the {prompts} it was trained on, "
            "and the same model on fresh prompts. CGD is shown on both."
        )
        self.trained = (
            f"Bank with scalar coefficients (own coefficient 1), full A in every layer, trained in each run on {prompts} "
            "(one query each) and no other. paper: 1,000 Adam steps; A, then Gamma (Appendix D, not with the quick preset): as many on A, then on Gamma; converged: 10,000 with a falling rate, "
            "until these prompts are fitted. A model has 25 to 103 parameters, so losses on the training prompts go "
            "to zero (floor -60 for zero to rounding). Fresh prompts: the query averaged out."
        )

    def run(self, bench: Workbench) -> Outcome:
        bench = bench.only_if_long(A_THEN_GAMMA)
        rows = curve_rows(bench.curves((), bench.data()), self.name)
        size, prompts = self.size, "1 prompt" if self.size == 1 else f"{self.size} prompts"
        claims = Claims("3.4")
        for number, training in enumerate(bench.trainings):
            own, fresh, cgd, cgd_fresh, _ = memformers(bench, training, SMALL, DEPTHS).at_size(size)
            if not number:
                rows += score_rows("CGD, same prompts", "none", cgd, "training prompts")
            rows += both_rows("Memformer", training, own, fresh)
            claims.test(
                f"batch-{size}-beats-cgd-on-its-own-prompts-{slug(training)}",
                f"A Memformer trained on {prompts} ({training} training) beats CGD on those same prompts.",
                "lower loss on the training prompts in every run, per depth",
                (lower_in_all_runs(own[d], cgd[d]) for d in own),
                f"{values(own)}; against CGD {compare(own, cgd)} (-60 stands for zero to rounding)",
            )
            evidence = f"{values(fresh)}; against CGD {compare(fresh, cgd_fresh)} (predicting 0 scores 1.609)"
            claims.add(
                f"batch-{size}-beats-cgd-on-fresh-prompts-{slug(training)}",
                f"A Memformer trained on {prompts} ({training} training) beats CGD on fresh prompts.",
                lower(fresh, cgd_fresh, evidence=evidence),
            )
        main = ["CGD|none", "CGD, same prompts|none", *keys(bench.pairs("Memformer"))]
        return Outcome(rows, claims, [*main, "Memformer|published"] if published_rows(self.name) else main)


ONE, TEN = SmallBatch(1), SmallBatch(10)
