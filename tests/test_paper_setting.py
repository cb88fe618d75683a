"""The paper's own setting: Appendix D's schedule, the text's spectrum, published curves under the authors' protocol."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import lfom
from lfom import InputError
from lfom.core.parameters import leaves
from lfom.core.runs import PerRun
from lfom.experiments import (
    authors_protocol,
    lfom_nonisotropic,
    other_covariates,
    published_curves,
    text_spectrum,
)
from lfom.experiments.rows import published_figures, published_rows
from lfom.experiments.statistics import Claims
from lfom.experiments.workbench import A_THEN_GAMMA, PRESETS, TRAININGS, WITH_PHASES, Preset, Workbench
from lfom.report.results import Row
from lfom.reproduction import _outcome


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Workbench:
    tiny = Preset("tiny", prompts=400, adam_steps=100, least_squares=0.01)
    monkeypatch.setitem(PRESETS, "tiny", tiny)
    return Workbench("tiny", runs=2, trainings=WITH_PHASES)


def numbers(fit: Any, kind: str) -> np.ndarray:
    return np.concatenate([np.ravel(leaf.array) for leaf in leaves(fit.model(0)) if leaf.kind == kind])


def test_gamma_is_trained_after_a_and_a_as_without_it(bench: Workbench) -> None:
    data = bench.data((1.0, 0.5), context=8)
    found = bench.trained(lfom_nonisotropic.FROM_ZERO, A_THEN_GAMMA, data, (2,))
    plain = bench.trained("Linear Transformer", "paper", data, (2,))
    assert [record["phase"] for record in found.history] == ["A", "coefficients"]
    np.testing.assert_allclose(numbers(found, "A"), numbers(plain, "A"), rtol=1e-4, atol=1e-6)
    assert np.abs(numbers(found, "coefficients")).max() > 0.1
    together = bench.trained(lfom_nonisotropic.FROM_ZERO, "paper", data, (2,))
    assert not np.allclose(numbers(together, "A"), numbers(found, "A"), rtol=1e-2)


@pytest.mark.parametrize(
    ("chosen", "made"), [(("converged",), {"converged"}), (("paper",), {"paper", A_THEN_GAMMA})]
)
def test_the_schedule_is_asked_for_with_the_papers_training(
    chosen: tuple[str, ...], made: set[str], bench: Workbench
) -> None:
    class Asks(lfom.Experiment):
        name = "asks"
        trainings = WITH_PHASES

        def run(self, bench: Workbench) -> lfom.Outcome:
            return lfom.Outcome([Row(t, t, 1.0, 0.0) for t in bench.trainings], [])

    outcome, _ = _outcome(Asks(), bench, chosen)
    assert isinstance(outcome, lfom.Outcome)
    assert {row.training for row in outcome.rows} == made


def test_every_published_curve_has_a_protocol_and_no_other() -> None:
    published = {(figure, row.curve) for figure in published_figures() for row in published_rows(figure)}
    protocols = {(figure, curve) for figure, curves in published_curves.PROTOCOLS.items() for curve in curves}
    assert protocols == published
    assert published > published_curves.LONG


def test_a_curve_comes_out_within_the_tolerance_and_not_beyond() -> None:
    values = {d: np.array([[0.0, 0.2], [0.4, 0.2]]) for d in (1, 2)}
    spread = float(np.std([0.0, 0.2, 0.4, 0.2], ddof=1))
    allowed = published_curves.WITHIN + 2 * spread
    assert published_curves.tolerance(values[1]) == pytest.approx(allowed)

    def verdict(*published: float) -> str:
        claims = Claims("")
        rows = [Row("curve", "published", at + 1, value) for at, value in enumerate(published)]
        published_curves.add_claim(claims, "figure", rows, values)
        return claims[0].verdict

    inside, outside = 0.2 + 0.99 * allowed, 0.2 - 1.01 * allowed
    assert [verdict(inside, inside), verdict(inside, outside), verdict(outside, outside)] == [
        "holds",
        "partly",
        "fails",
    ]


def test_scores_are_of_sets_of_the_authors_size(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authors_protocol, "SETS", 2)
    found = authors_protocol.cgd(bench, 19, 1_000)
    assert {d: each.shape for d, each in found.items()} == dict.fromkeys((1, 2, 3, 4), (2, 2))
    prompts = authors_protocol.prompts(bench, (1.0, 1.0, 0.25, 0.0625, 1.0), 19)
    assert prompts.target.shape == (2, 1, 2_000)  # one query each
    np.testing.assert_allclose(
        found[1].mean(), 0.729, atol=0.15
    )  # the published value, docs/mathematics.md 2.10
    np.testing.assert_allclose(np.exp(found[4]).mean(), np.exp(authors_protocol.cgd(bench, 19, 10)[4]).mean())


def test_the_second_stage_goes_on_from_the_readers_of_the_first(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authors_protocol, "STEPS", 100)
    plain, model = "Linear Transformer, scalar A", "Memformer, register, scalar A"
    first = authors_protocol.first(bench, plain, 10)
    found = authors_protocol.second(bench, model, plain, ("coefficients",), 10)
    np.testing.assert_array_equal(numbers(found, "A"), numbers(first, "A"))  # not free in the second
    untrained = np.concatenate([np.ones(4), np.zeros(4)])  # alpha and gamma
    assert np.abs(np.sort(numbers(found, "coefficients")) - np.sort(untrained)).max() > 0.01
    own = authors_protocol.on_its_batch(bench, found, 10)
    assert {d: each.shape for d, each in own.items()} == dict.fromkeys((1, 2, 3, 4), (2, 1))
    before = authors_protocol.on_its_batch(bench, first, 10)
    assert (own[4] < before[4]).all()  # on the prompts that it was fitted to


@pytest.mark.parametrize("beta", ["beta1", "beta2"])
def test_adams_betas_are_taken_and_checked(beta: str) -> None:
    changed: dict[str, Any] = {beta: 0.5}
    with pytest.raises(InputError, match=f"{beta} is 1.0: .* below 1"):
        lfom.Adam(**(changed | {beta: 1.0}))
    gradients = (1.0, -3.0)
    one, other = (adam.optimiser() for adam in (lfom.Adam(), lfom.Adam(**changed)))
    moved = []
    for rule in (one, other):
        state, update = rule.init(jnp.zeros(1)), jnp.zeros(1)
        for gradient in gradients:
            update, state = rule.update(jnp.full(1, gradient), state)
        moved.append(float(update[0]))
    assert abs(moved[0] - moved[1]) > 1e-4


def test_verdicts_stand_side_by_side(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figure is replaced: a claim that holds with the text's spectrum alone, and one that holds with both."""

    def compared(bench: Workbench, data: PerRun, label: str, prompts: int | None, variants: bool) -> Any:
        claims = Claims("3.3")
        claims.test(
            "first", "A.", "rule", label != "main", f"spectrum {float(data.stacked.spectrum.min()):g}"
        )
        claims.test("second", "B.", "rule", True, "")
        return {}, claims

    monkeypatch.setattr(lfom_nonisotropic, "compared", compared)
    found = text_spectrum.TextSpectrum().run(bench)
    verdicts = {claim.id: claim.verdict for claim in found.claims}
    assert verdicts["lfom_nonisotropic-same-verdicts"] == "partly"
    assert verdicts["lfom_nonisotropic-first-text"] == verdicts["lfom_nonisotropic-second-text"] == "holds"
    first = next(claim for claim in found.claims if claim.id.endswith("first-text"))
    assert "fails with the published one" in first.evidence
    assert "spectrum 0.25" in first.evidence
    assert "spectrum 0.0625" in first.evidence


def test_the_optimum_on_other_covariates_is_sampled_and_below_what_is_tuned(bench: Workbench) -> None:
    data = other_covariates.covariates(bench, "sphere")
    quick = bench.with_trainings(TRAININGS)
    found = quick.curves((), data, (1, 2), "sphere")
    assert ("exact optimum", "none") not in found
    for depth in (1, 2):
        best = found["sampled optimum", "none"][depth]
        assert best.log_loss < found["GD, tuned", "none"][depth].log_loss - 0.2
