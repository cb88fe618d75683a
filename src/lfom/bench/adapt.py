"""Gates per prompt (three experts, four layers, d = 5, n = 20): one compiled call for a batch of prompts,
against a plain loop that calls the same program prompt by prompt."""

from functools import partial

import jax
import jax.numpy as jnp

from lfom.adaptation import adapt
from lfom.adaptation.per_prompt import STEPS
from lfom.bench.timing import Ratio, side_by_side
from lfom.core.methods import Mixture
from lfom.methods.memformer import memformer, mixture
from lfom.prompts.distributions import LinearRegression
from lfom.prompts.prompt import Prompt

LOOPED = 50  # prompts that the plain loop is timed on


def gated_model(d: int = 5) -> Mixture:
    """Experts with step sizes that suit three variances; the time does not depend on their training."""
    keys = jax.random.split(jax.random.key(0), 3)
    options = {"preconditioner": "full", "own_is_one": True, "tied": True}
    heads = []
    for index, key in enumerate(keys):
        plain = memformer(d, 4, key=key, **options)  # type: ignore[arg-type]
        eye = 0.3 / (1 + index) * jnp.eye(d)
        heads.append(jax.tree.map(lambda a, eye=eye: a + eye if a.shape[1:] == (d, d) else a, plain))
    return mixture(heads)


def bench_adapt(prompts: int = 10_000, n: int = 20, d: int = 5) -> list[Ratio]:
    """Seconds per prompt, held-out judgement included."""
    model = gated_model(d)
    batch = LinearRegression([1.0] * d, n).prompts(jax.random.key(1), prompts)
    one = _pick(batch, 0)

    adapted = partial(adapt, model, setting="per prompt")

    def looped() -> None:
        for index in range(LOOPED):
            adapted(_pick(batch, index))

    together, alone = partial(adapted, batch), partial(adapted, one)
    seconds = side_by_side({"together": together, "loop": looped, "alone": alone}, rounds=5)
    each, loop = seconds["together"] / prompts, seconds["loop"] / LOOPED
    details = {"prompts": prompts, "steps": STEPS}
    return [
        Ratio(f"a loop over prompts, batch of {prompts:,}", 1e6 * each, 1e6 * loop, "us/prompt", details),
        Ratio("the time allowed for a prompt of a batch", 1e6 * each, 20.0, "us/prompt", details),
        Ratio("the time allowed for one prompt alone", 1e3 * seconds["alone"], 5.0, "ms", {"steps": STEPS}),
    ]


def _pick(batch: Prompt, index: int) -> Prompt:
    return jax.tree.map(lambda a: a[index], batch)
