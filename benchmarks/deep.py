"""Seven layers: the paired difference to the exact optimum against prompts and time.

    PYTHONPATH=src JAX_PLATFORMS=cpu taskset -c 0,1 python benchmarks/deep.py 10

trains the Linear Transformer and the untied bank at the given d (the published spectrum, repeated),
5 runs, with more and more prompts in the last passes, from nothing each time (compiled programs are
cleared), and scores all of them on the same fresh prompts.
"""

import sys

import jax
import jax.numpy as jnp

import lfom
from lfom.limits.optimum import with_preconditioner

RUNS, DEPTH, CONTEXT, FRESH = 5, 7, 20, 500_000
MODELS = {"Linear Transformer": {"memory": "none"}, "bank, untied": {"memory": "bank"}}


def main(d: int) -> None:
    spectrum = lfom.PUBLISHED_SPECTRUM * (d // len(lfom.PUBLISHED_SPECTRUM))
    data = jax.vmap(
        lambda key: lfom.LinearRegression(spectrum, CONTEXT, rotation=lfom.haar_rotation(key, d))
    )(jax.random.split(jax.random.key(0), RUNS))
    inverse = jax.vmap(lambda one: jnp.linalg.inv(one.covariance))(data)
    optimum = lfom.exact_optimum(d, CONTEXT, DEPTH)
    methods: dict = {"optimum": lfom.PerRun(jax.vmap(lambda A: with_preconditioner(optimum, A))(inverse))}
    fits = {}
    for name, options in MODELS.items():
        model = lfom.memformer(d, DEPTH, key=jax.random.key(1), **options)
        for last in (2_000, 20_000, 100_000, None):
            jax.clear_caches()
            trained = lfom.fit(model, data, key=jax.random.key(2), optimiser=lfom.LeastSquares(last=last))
            prompts = sum(row["prompts"] for row in trained.history)
            fits[f"{name}, {'default' if last is None else f'{last:,}'}"] = (prompts, trained.seconds)
            methods[list(fits)[-1]] = trained.per_run()
            print(list(fits)[-1], f"{trained.seconds:.0f} s", file=sys.stderr, flush=True)
    scores = lfom.evaluate(methods, data, prompts=FRESH, key=jax.random.key(3))
    print(f"d = {d}, depth {DEPTH}, {RUNS} runs, {FRESH:,} fresh prompts; optimum {optimum.log_loss:.3f}")
    print("model, prompts of a last pass        prompts in all   seconds   above the optimum")
    for name, (prompts, seconds) in fits.items():
        mean, error = scores[name].minus(scores["optimum"])
        print(f"{name:36s} {prompts:14,} {seconds:9.0f}   {mean:+.3f} ± {error:.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
