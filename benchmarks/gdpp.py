"""GD++ trained on ten rotations beside the optimum of its class: the largest difference at every depth.

    python benchmarks/gdpp.py --memory none --seeds 0 1

For each seed five rotations of the published covariance, one training of depths 1 to 4, and the optimum with the true inverse
covariance. Differences of log losses on the same 200,000 fresh prompts.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import lfom
from lfom.limits.gdpp import gdpp_optima, with_matrix

SPECTRUM, CONTEXT, DEPTHS = [1.0, 1.0, 0.25, 0.0625, 1.0], 20, (1, 2, 3, 4)
MODELS = {"none": {"memory": "none"}, "pair": {"gamma": "pair"}}


def differences(memory, seed, rotations, prompts):
    """(rotations, depths)"""
    key = jax.random.key(seed)
    turn, start, train, best, score = jax.random.split(key, 5)
    d = len(SPECTRUM)
    data = lfom.PerRun(
        [
            lfom.LinearRegression(SPECTRUM, CONTEXT, rotation=lfom.haar_rotation(own, d))
            for own in jax.random.split(turn, rotations)
        ]
    )
    model = lfom.memformer(d, DEPTHS[-1], covariates=True, key=start, **MODELS[memory])
    began = time.perf_counter()
    fit = lfom.fit(model, data, depths=DEPTHS, key=train)
    took = time.perf_counter() - began
    inverses = [np.linalg.inv(one.covariance) for one in data.each()]
    optima = gdpp_optima(data[0], DEPTHS, best, preconditioner=inverses[0], memory=memory, prompts=2_500_000)
    methods = {}
    for depth in DEPTHS:
        methods[f"trained {depth}"] = fit.per_run(depth)
        methods[f"best {depth}"] = lfom.PerRun(
            [with_matrix(optima[depth].method, jnp.asarray((M + M.T) / 2)) for M in inverses]
        )
    found = lfom.evaluate(methods, data, prompts=prompts, key=score)
    table = [found[f"trained {L}"].log_mean[:, -1] - found[f"best {L}"].log_mean[:, -1] for L in DEPTHS]
    return np.stack(table, axis=1), took


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--memory", choices=sorted(MODELS), default="none")
    asked.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    asked.add_argument("--rotations", type=int, default=5)
    asked.add_argument("--prompts", type=int, default=200_000)
    given = asked.parse_args()
    for seed in given.seeds:
        table, took = differences(given.memory, seed, given.rotations, given.prompts)
        print(f"{given.memory}, seed {seed}: {given.rotations} trainings in {took:.0f} s", flush=True)
        for depth, column in zip(DEPTHS, table.T, strict=True):
            print(f"  {depth} layers: " + " ".join(f"{value:+.4f}" for value in column), flush=True)


if __name__ == "__main__":
    main()
