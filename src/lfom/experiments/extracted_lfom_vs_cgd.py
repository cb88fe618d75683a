"""Figure ExtractedLFOMvsCGD: a learned first-order method with diagonal coefficients against CGD."""

from lfom.experiments.fixed_batches import by_depth, lower_in_all_runs
from lfom.experiments.learned_lfom import ISOTROPIC, learned_lfom
from lfom.experiments.rows import baseline_rows, published_rows, score_rows
from lfom.experiments.statistics import below, compare, gap, near, verdict
from lfom.experiments.workbench import DEPTHS, Outcome, Workbench
from lfom.report.results import Claim

TITLE = "Learned LFOM against CGD"
SECTION = "5, Figure ExtractedLFOMvsCGD"
SHOWS = (
    "The coefficients of a first-order method learned from 10, 50, 100 or 1,000 prompts of isotropic data, "
    "on those prompts and on fresh ones, against CGD, which computes its own for every prompt."
)
TRAINED = (
    "Diagonal coefficients Lambda_j^k of the plain gradients (A the identity), d = 5, n = 20, untied: 5 to 50 "
    "numbers, fitted to a fixed set of prompts with one query each. paper: 1,000 Adam steps; converged: "
    "least squares on the set itself."
)
GROUPS = ((10, 50, 100), (1000,))


def run(bench: Workbench) -> Outcome:
    data = bench.data(ISOTROPIC)
    fits = [
        (learned_lfom, bench, training, sizes, DEPTHS) for training in bench.trainings for sizes in GROUPS
    ]
    bench.side_by_side([(bench.baselines, data, DEPTHS, "isotropic"), *fits])
    rows = baseline_rows(bench.baselines(data, label="isotropic"))
    rows += published_rows("ExtractedLFOMvsCGD")
    claims = []
    for training in bench.trainings:
        beaten, matched, steady, evidence, on_own, gaps = {}, {}, {}, [], [], []
        for sizes in GROUPS:
            found = learned_lfom(bench, training, sizes, DEPTHS)
            for size in sizes:
                own, fresh = by_depth(found.training, size), by_depth(found.fresh, size)
                cgd, cgd_fresh = by_depth(found.cgd_training, size), by_depth(found.cgd_fresh, size)
                curve = f"LFOM, batch {size}"
                rows += score_rows(curve, training, own, "training prompts")
                rows += score_rows(curve, training, fresh)
                beaten[size] = [d for d in DEPTHS if lower_in_all_runs(own[d], cgd[d])]
                matched[size] = [d for d in DEPTHS if near(fresh[d], cgd_fresh[d], 0.02)]
                steady[size] = not any(below(own[d], fresh[d], 0.1) for d in DEPTHS)
                on_own.append(f"B={size}: depths {beaten[size]} ({compare(own, cgd)})")
                evidence.append(f"B={size}: depths {matched[size]} ({compare(fresh, cgd_fresh)})")
                mean, error = gap(fresh[4], own[4])
                gaps.append(f"B={size}: {mean:+.3f} ± {error:.3f}")
        claims += [
            Claim(
                f"learned-lfom-beats-cgd-on-its-own-prompts-{training}",
                f"A learned LFOM ({training} training) matches or beats CGD on the prompts it was learned from.",
                "5",
                "loss on the training prompts below CGD's in every run, for every batch size and depth",
                verdict(*(d in depths for depths in beaten.values() for d in DEPTHS)),
                "below CGD at " + "; ".join(on_own),
            ),
            Claim(
                f"learned-lfom-matches-cgd-fresh-{training}",
                f"A learned LFOM ({training} training) matches or beats CGD on fresh prompts.",
                "5",
                "log loss on the same fresh prompts at most 0.02 above CGD's, for every batch size and depth",
                verdict(*(d in depths for depths in matched.values() for d in DEPTHS)),
                "matches CGD at " + "; ".join(evidence),
            ),
            Claim(
                f"learned-lfom-generalises-{training}",
                f"A learned LFOM ({training} training) generalises from moderate to large batches (50 or more).",
                "5",
                "log loss on fresh prompts at most 0.1 above that on the training prompts (two standard "
                "errors), at every depth",
                verdict(*(steady[size] for size in (50, 100, 1000))),
                "fresh minus training at depth 4: " + "; ".join(gaps),
            ),
        ]
    main = ["CGD|none", "exact optimum|none"]
    main += [f"LFOM, batch {size}|{t}" for t in bench.trainings for size in (10, 1000)]
    return Outcome(rows, claims, [*main, "LFOM, batch 10|published", "LFOM, batch 1000|published"])
