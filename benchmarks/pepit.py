"""Worst cases of `lfom.worst_case` beside those of PEPit, for the same methods: numbers and times.

PEPit is told every method as its authors write it, not as lfom stores it. Run from the source folder, with an interpreter that has
PEPit if this one does not (`pip install PEPit clarabel`):

    PYTHONPATH=src python benchmarks/pepit.py [the other interpreter]
"""

import json
import math
import statistics
import subprocess
import sys
import time

MU = 0.1
SIZES = (1, 2, 4, 8)
RANDOM = 7  # seed of the random method with memory
FORMS = (("value", "distance"), ("gradient", "distance"), ("gradient", "value"), ("distance", "distance"))


def cases():
    """name, steps, strong convexity, measure, start."""
    for name in (
        "gradient_descent",
        "heavy_ball",
        "fast_gradient",
        "ogm",
        "ogm_g",
        "item",
        "silver",
        "random",
    ):
        for steps in (1, 3, 7) if name == "silver" else SIZES:
            for mu in (MU,) if name == "item" else (0.0, MU):
                for measure, start in FORMS:
                    if measure == "distance" and not mu:
                        continue  # 1 or more
                    yield name, steps, mu, measure, start


def random_table(steps):
    import numpy as np

    return np.tril(np.random.default_rng(RANDOM + steps).uniform(0, 1, (steps, steps)))


def ours():
    import jax

    import lfom

    jax.config.update(
        "jax_enable_x64", True
    )  # numbers of methods, rounded to float32, move worst cases by 1e-5
    make = {
        "gradient_descent": lambda n, mu: lfom.gradient_descent(1.5, steps=n),
        "heavy_ball": lambda n, mu: lfom.heavy_ball(0.9, 0.4, steps=n),
        "fast_gradient": lambda n, mu: lfom.fast_gradient(n, 1.0, mu),
        "ogm": lambda n, mu: lfom.ogm(n),
        "ogm_g": lambda n, mu: lfom.ogm_g(n),
        "item": lambda n, mu: lfom.item(n, 1.0, mu),
        "silver": lambda n, mu: lfom.silver(n),
        "random": lambda n, mu: lfom.lfom(-random_table(n)),
    }
    for name, steps, mu, measure, start in cases():
        method = make[name](steps, mu)
        began = time.process_time()
        found = lfom.worst_case(method, 1.0, mu, measure, start)
        yield float(found), found.accuracy, time.process_time() - began


def theirs():
    """The same by PEPit."""
    from PEPit import PEP
    from PEPit.functions import SmoothConvexFunction, SmoothStronglyConvexFunction

    for name, steps, mu, measure, start in cases():
        began = time.process_time()
        problem = PEP()
        kind, own = (SmoothStronglyConvexFunction, {"mu": mu}) if mu else (SmoothConvexFunction, {})
        f = problem.declare_function(kind, L=1.0, **own)
        best, x_0 = f.stationary_point(), problem.set_initial_point()
        problem.set_initial_condition(
            (x_0 - best) ** 2 <= 1 if start == "distance" else f(x_0) - f(best) <= 1
        )
        x = AUTHORS[name](f.gradient, x_0, steps, mu)
        measures = {
            "value": lambda: f(x) - f(best),
            "gradient": lambda: f.gradient(x) ** 2,
            "distance": lambda: (x - best) ** 2,
        }
        problem.set_performance_metric(measures[measure]())
        found = problem.solve(wrapper="cvxpy", solver="CLARABEL", verbose=0)
        yield found, time.process_time() - began


def _descent(gradient, x, sizes):
    for h in sizes:
        x = x - h * gradient(x)
    return x


def _heavy_ball(gradient, x, steps, mu):
    before = x
    for _ in range(steps):
        x, before = x - 0.9 * gradient(x) + 0.4 * (x - before), x
    return x


def _fast(gradient, x, steps, mu):
    y, t, q = x, 1.0, math.sqrt(mu)
    for _ in range(steps):
        after = y - gradient(y)
        larger = (1 + math.sqrt(1 + 4 * t * t)) / 2
        y = after + ((1 - q) / (1 + q) if mu else (t - 1) / larger) * (after - x)
        x, t = after, larger
    return x


def _thetas(steps):
    theta = [1.0]
    for k in range(steps):
        theta.append((1 + math.sqrt(1 + (8 if k == steps - 1 else 4) * theta[-1] ** 2)) / 2)
    return theta


def _ogm(gradient, x, steps, mu):
    theta, y = _thetas(steps), x
    for k in range(steps):
        after = x - gradient(x)
        x = after + (theta[k] - 1) / theta[k + 1] * (after - y) + theta[k] / theta[k + 1] * (after - x)
        y = after
    return x


def _ogm_g(gradient, x, steps, mu):
    """Kim and Fessler 2021, with theta counted from the end."""
    theta, y = _thetas(steps)[::-1], x
    for k in range(steps):
        after = x - gradient(x)
        a, b = theta[k], theta[k + 1]
        x = (
            after
            + (a - 1) * (2 * b - 1) / (a * (2 * a - 1)) * (after - y)
            + (2 * b - 1) / (2 * a - 1) * (after - x)
        )
        y = after
    return x


def _item(gradient, x, steps, mu):
    A, z, q = 0.0, x, mu
    for _ in range(steps):
        larger = ((1 + q) * A + 2 * (1 + math.sqrt((1 + A) * (1 + q * A)))) / (1 - q) ** 2
        beta = A / ((1 - q) * larger)
        delta = ((1 - q) ** 2 * larger - (1 + q) * A) / (2 * (1 + q + q * A))
        y = (1 - beta) * z + beta * x
        g = gradient(y)
        x, z, A = y - g, (1 - q * delta) * z + q * delta * y - delta * g, larger
    return z


def _random(gradient, x, steps, mu):
    rows, at, seen = random_table(steps).tolist(), x, []
    for row in rows:
        seen.append(gradient(at))
        at = x
        for c, g in zip(row, seen, strict=False):
            at = at - c * g
    return at


RHO = 1 + math.sqrt(2)
AUTHORS = {
    "gradient_descent": lambda g, x, n, mu: _descent(g, x, [1.5] * n),
    "silver": lambda g, x, n, mu: _descent(g, x, [1 + RHO ** (math.log2(k & -k) - 1) for k in range(1, n + 1)]),
    "heavy_ball": _heavy_ball, "fast_gradient": _fast, "ogm": _ogm, "ogm_g": _ogm_g, "item": _item, "random": _random,
}  # fmt: skip


def main(other):
    known = subprocess.run([other, "-c", "import PEPit"], capture_output=True).returncode == 0
    if not known:
        print(
            f"{other} has no PEPit, so there is nothing to compare with: pip install PEPit clarabel, or name another one."
        )
        return
    began = subprocess.run([other, __file__, "--theirs"], capture_output=True, text=True, check=True)
    pairs = list(zip(cases(), ours(), json.loads(began.stdout.splitlines()[-1]), strict=True))
    print(
        "method             cases  largest relative difference  processor ms of lfom, of PEPit (medians at 7 or 8 steps)"
    )
    for name in AUTHORS:
        own = [(case, a, b) for case, a, b in pairs if case[0] == name]
        off, case = max((abs(a[0] - b[0]) / max(b[0], 1e-9), case) for case, a, b in own)
        long = [(a[2], b[1]) for case, a, b in own if case[1] >= 7]
        times = [1e3 * statistics.median(some) for some in zip(*long, strict=True)]
        print(f"{name:18} {len(own):5}  {off:.1e} {case[1:]!s:45} {times[0]:8.1f} {times[1]:8.1f}")
    print(
        f"{len(pairs)} worst cases; {sum(abs(a[0] - b[0]) > 1e-5 * b[0] + 1e-7 for _, a, b in pairs)} differ by more than 1e-5"
    )
    for case, a, b in pairs:
        if abs(a[0] - b[0]) > 1e-5 * b[0] + 1e-7:
            print("  ", case, a, b)


if __name__ == "__main__":
    if sys.argv[1:] == ["--theirs"]:
        print(json.dumps(list(theirs())))
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else sys.executable)
