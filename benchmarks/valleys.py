"""Valleys of GD++ with a bank of pairs: where Levenberg-Marquardt ends from random starts (lfom.limits.spectral.VALLEYS).

    python benchmarks/valleys.py --layers 3 --starts 60

Starts: the numbers of GD++ without memory, with b of another order of magnitude, and other tables for context and
query in the last three layers. Few prompts find the valleys; the last column is the loss on prompts that were not used.
"""

import argparse

import equinox as eqx
import jax
import numpy as np

import lfom
from lfom.core.vectors import vector_of
from lfom.limits.gdpp import template
from lfom.limits.spectra import spectra
from lfom.limits.spectral import AtPoints, FittedTo, NumberFit, fitted_depths

LATE = 3


def started(bare, layers, random):
    """One random start."""
    late = np.arange(layers) >= layers - LATE
    older = np.tril(late[:, None] & late, -1)
    normal = random.standard_normal
    model = template("pair", layers)
    context = np.eye(layers) + 0.4 * normal((layers, layers)) * older
    query = np.eye(layers) + 1.5 * normal((layers, layers)) * (older + 0.5 * np.diag(late))
    a = np.asarray(bare.reader.A.scale) * np.exp(0.2 * late * normal(layers))
    b = np.asarray(bare.reader.B.scale) * np.exp(random.choice([0.3, 1.0]) * late * normal(layers))
    return eqx.tree_at(
        lambda m: (m.memory.gamma.context, m.memory.gamma.query, m.reader.A.scale, m.reader.B.scale),
        model,
        (context, query, a, b),
    )


def main():
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--layers", type=int, default=3)
    asked.add_argument("--starts", type=int, default=60)
    asked.add_argument("--prompts", type=int, default=1_500)
    asked.add_argument("--steps", type=int, default=300)
    asked.add_argument("--seed", type=int, default=0)
    given = asked.parse_args()
    data = lfom.LinearRegression(lfom.PUBLISHED_SPECTRUM, context=20)
    M = np.linalg.inv(np.asarray(data.covariance, np.float64))
    train, judge = (
        spectra(data.quadratics(key, 20_000), M) for key in jax.random.split(jax.random.key(given.seed))
    )
    bare = fitted_depths(
        [template("none", depth) for depth in range(1, given.layers + 1)],
        FittedTo.of(train, given.layers),
        judge,
    )[-1]
    fitted = NumberFit(template("pair", given.layers))
    random = np.random.default_rng(given.seed)
    starts = np.stack([vector_of(started(bare, given.layers, random)) for _ in range(given.starts)])
    ends = zip(*fitted.fit(starts, AtPoints(train[: given.prompts], given.layers), given.steps), strict=True)
    plain = NumberFit(bare).losses(vector_of(bare), judge).mean()
    print(f"without memory {np.log(plain):.3f} on other prompts")
    for vector, loss in sorted(ends, key=lambda end: end[1])[:10]:
        other = np.log(fitted.losses(vector, judge).mean())
        print(f"{np.log(loss):8.3f} {other:8.3f}  {np.round(vector, 2).tolist()}")


if __name__ == "__main__":
    main()
