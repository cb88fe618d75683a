"""Loss against shift and against budget: experts with adapted gates, and what they have to beat."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lfom.adaptation.per_prompt import context_question, gates_for, with_gates
from lfom.core.runs import take
from lfom.core.unroll import losses
from lfom.experiments import shifted
from lfom.experiments.experiment import Experiment
from lfom.experiments.rows import Row, flatten, run_rows
from lfom.experiments.shifted import FOUR_STEPS, LABEL_FREE, OWN_GATES, PLACES, UNADAPTED, WITH_LABELS
from lfom.experiments.statistics import Claims, listed, under, written
from lfom.experiments.workbench import Outcome, Workbench, keys
from lfom.training import PerRun

Y = "log loss relative to the labels' variance"
MAIN = (UNADAPTED, LABEL_FREE, OWN_GATES, "union", "normalised", "conjugate register")
INSTEAD = {  # of experts, in words
    "normalised": "one normalised model",
    "conjugate register": "the conjugate register, which adapts two numbers per layer by itself,",
    "union": "one model trained on the union of variances",
}
BUDGETS, BUDGET_PLACES = (0, 1, 2, 4, 8), (("variance", 16.0), ("angle", 1.5))


class AdaptationToShifts(Experiment):
    name = "adaptation"
    title = "Out of distribution: adaptation, and what makes it unnecessary"
    section = "4.2, our own"
    shows = (
        "Three experts of four layers (variances 1, 2 and 3), their gates unadapted (1/3 each), fitted with labels, "
        "without labels and per prompt, on shifted prompts; beside them one expert as it is, a model trained on the "
        "union of variances, a normalised model, the conjugate register, CGD with and without the unshifted "
        "covariance as preconditioner, least squares and ridge at its best penalty. Loss relative to the labels' "
        "variance; without noise least squares is exact. The last panel is loss against steps of adaptation, at "
        "variance 16 and at an angle of 1.5; no step is the unadapted model, or for gates per prompt the best single "
        "expert of each prompt. With few degrees of freedom the mean loss of a method with fixed coefficients is "
        "infinite (its loss is a polynomial of the covariates): those points are means of the prompts drawn."
    )
    trained = (
        "Memformers (bank, own coefficient 1, one matrix), least squares at variance 1; data of variance v is that "
        "data scaled, so the expert of v is exactly the same model with A / v. Union: variances log-uniform from 0.25 "
        "to 16, labels of the same variance at each; no polynomial of degree four is small on all these eigenvalues, "
        "so its loss is what four layers allow. Normalised: the same on prompts divided by their own scale. Adaptation: "
        "4,096 prompts per run and shift, with the labels of their queries, or without: then one example of every context, "
        "another one in the next, is held out and stands for the query; 8 steps; scored on other prompts. Per prompt: 4 steps. "
        "Ridge's penalty is chosen on the other runs."
    )
    x_label = {
        "variance": "variance of the covariates",
        "angle": "largest angle of the rotation (radians)",
        "power": "power of the spectrum",
        "noise": "noise of the labels",
        "length": "examples in the context",
        "degrees": "degrees of freedom of the covariates (Student's t)",
        "budget": "least-squares steps of adaptation",
    }
    y_label = dict.fromkeys(x_label, Y)
    x_scale = dict.fromkeys(x_label, "linear") | {"variance": "log"}

    def run(self, bench: Workbench) -> Outcome:
        if "converged" not in bench.trainings:
            return Outcome([], [])
        found, budget = shifted.on_shifts(bench), against_budget(bench)
        points = [(at, *place) for at, place in enumerate(PLACES)]
        points += [(PLACES.index(("variance", 1.0)), family, x) for family, x in shifted.UNSHIFTED.items()]
        main = keys((name, "converged") for name in (*MAIN, *(row.curve for row in budget)))
        change = normalised_change(bench)
        return Outcome(found.rows(points) + budget, claims(found, change), list(dict.fromkeys(main)))


@eqx.filter_jit
def gated_losses(models: PerRun, data: PerRun, keys: object, steps: object, count: int) -> jax.Array:
    """Mean losses (runs, 2) before the first and after the last layer; gates per prompt after `steps` steps
    (a number that is not compiled in), or the model's own where it is None."""

    def one(args: tuple) -> jax.Array:
        model, data, key = args
        q = jax.lax.optimization_barrier(data.quadratics(key, count))
        if steps is not None:
            model = with_gates(model, gates_for(model, context_question(q), steps))
        return jnp.mean(losses(model, q), axis=-1)[jnp.asarray([0, -1])]

    return jax.lax.map(one, (models.stacked, data.stacked, keys))


def relative_losses(models: PerRun, data: PerRun, keys: object, steps: int | None, count: int) -> np.ndarray:
    wanted = None if steps is None else jnp.asarray(steps)
    found = np.log(np.asarray(gated_losses(models, data, keys, wanted, count), np.float64))
    return found[:, 1] - found[:, 0]


def against_budget(bench: Workbench) -> list[Row]:
    """Loss after some steps of adaptation, in each setting."""
    runs, count = bench.runs, bench.preset.prompts // 50
    places = [PLACES.index(place) for place in BUDGET_PLACES]
    index = np.concatenate([np.arange(at * runs, (at + 1) * runs) for at in places])
    data = PerRun(take(shifted.shifted_data(bench).stacked, index))
    many = shifted.repeated(shifted.experts_of(bench, shifted.EXPERTS), len(places))
    adapt_keys, score_keys = (
        jax.random.split(bench.stream(name, "budget"), len(index)) for name in ("adapt", "score")
    )
    lengths = [shifted.LENGTHS[at] for at in places]
    bench.say("adapting gates with several budgets")
    found: dict[tuple[str, int], np.ndarray] = {}
    models, spent = {WITH_LABELS: many, LABEL_FREE: many}, 0
    for steps in BUDGETS:
        found[OWN_GATES, steps] = relative_losses(many, data, score_keys, steps, count)
        if steps:  # a fit goes on where it stopped
            models = shifted.adapted_gates(models, data, adapt_keys, lengths, steps - spent)
            spent = steps
        for name, model in models.items():
            found[name, steps] = relative_losses(model, data, score_keys, None, count)
    return flatten(
        run_rows(f"{name}, {family} {x:g}", "converged", steps, each, "budget", prompts=count)
        for (name, steps), values in found.items()
        for (family, x), each in zip(BUDGET_PLACES, values.reshape(-1, runs), strict=True)
    )


def normalised_change(bench: Workbench) -> float:
    """The largest change of the relative log loss (mean over runs) of the normalised model between the
    variances, on prompts drawn with the same random numbers."""
    model, drawn_with = shifted.single_models(bench)["normalised"], bench.stream("normalised")
    each, count = jax.random.split(drawn_with, bench.runs), bench.preset.prompts // 50
    variances = (shifted.LOWEST, 1.0, shifted.HIGHEST)
    found = [relative_losses(model, bench.data(variance=v), each, None, count).mean() for v in variances]
    return float(np.ptp(found))


def claims(found: shifted.OnShifts, change: float) -> Claims:
    table, made = found.table, Claims("4.2")
    places = [f"{family} {x:g}" for family, x in PLACES]

    def minus(ours: str, theirs: str) -> np.ndarray:
        return table[ours] - table[theirs]  # (places, runs)

    gaps = minus(UNADAPTED, WITH_LABELS).mean(axis=1)
    wide = [at for at, gap in enumerate(gaps) if gap > 0.2]
    closed = {at: minus(UNADAPTED, LABEL_FREE)[at].mean() / gaps[at] for at in wide}
    made.test(
        "label-free-closes-the-gap",
        "Ours: gates fitted without any label do as well as with labels.",
        "share of the gap between unadapted and labelled gates that label-free ones close, at least 90 % wherever the gap exceeds 0.2",
        (share >= 0.9 for share in closed.values()),
        "; ".join(f"{places[at]}: {100 * share:.0f} % of {gaps[at]:.2f}" for at, share in closed.items()),
    )
    flat = np.ptp(table["normalised"][[family == "variance" for family, _ in PLACES]].mean(axis=1))
    made.test(
        "normalisation-makes-variance-no-shift",
        "Ours: dividing each prompt by a scale of its own makes a shift of variance no shift.",
        "relative log loss (mean over runs) changes by at most 0.05 from variance 0.25 to 16, on prompts from the same random numbers",
        change <= 0.05,
        f"largest change {change:.1e}; on prompts drawn for each variance by itself {flat:.3f}",
    )
    for name, words in INSTEAD.items():
        differences = minus(name, OWN_GATES)
        made.test(
            f"{name.replace(' ', '-').replace('normalised', 'normalisation')}-makes-experts-unnecessary",
            f"Ours: {words} does better than three experts with gates per prompt.",
            "relative log loss on the same fresh prompts lower by two standard errors over runs, per shift",
            map(under, differences),
            listed(dict(zip(places, differences, strict=True)), lambda v: written(v, "+.2f")),
        )
    best = [min(FOUR_STEPS, key=lambda name: table[name][at].mean()) for at in range(len(places))]
    ahead = [minus(OWN_GATES, rival)[at] for at, rival in enumerate(best)]
    against = zip(places, ahead, best, strict=True)
    made.test(
        "experts-still-win",
        "Ours: experts with gates per prompt do better than every other method of four steps.",
        f"relative log loss on the same fresh prompts lower by two standard errors over runs than the best of {', '.join(FOUR_STEPS)}, per shift",
        map(under, ahead),
        "; ".join(f"{place}: {written(v, '+.2f')} against {rival}" for place, v, rival in against),
    )
    return made
