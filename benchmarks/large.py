"""Large problems: learned and solved in a process of their own, with time, peak memory and held-out error.

    PYTHONPATH=src python benchmarks/large.py [dense square cube] [--steps 50] [--structure auto]

dense: systems of 1,000 unknowns, sample covariances of 2,000 rows with eigenvalues j^-1.5. square, cube: steady
diffusion on grids of 128 x 128 and 32 x 32 x 32. 40 problems to learn from and 40 held out, in float32. Errors are medians
in the energy norm, relative to the start, against solutions in float64, beside as many steps of Jacobi CG. PYTHONPATH may
name the sources of another version: problems and the table are made here.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

PROBLEMS = 40  # to learn from, and as many held out
SIDES = {"square": (128, 128), "cube": (32, 32, 32)}
UNKNOWNS, ROWS = 1_000, 2_000
SPREAD = 1.0  # standard deviation of log k
LENGTH = 6.0  # correlation length of k in cells; that of the source is half
EXACT = 4_000  # steps of Jacobi CG in float64, at most


def dense(random):
    """Matrices of one distribution, in coordinates of which none is an eigenvector."""
    basis = np.linalg.qr(random.standard_normal((UNKNOWNS, UNKNOWNS)))[0].astype(np.float32)
    root = basis * np.arange(1, UNKNOWNS + 1, dtype=np.float32) ** -0.75
    A = np.empty((2 * PROBLEMS, UNKNOWNS, UNKNOWNS), np.float32)
    for place in A:
        X = random.standard_normal((ROWS, UNKNOWNS), np.float32) @ root.T
        place[:] = X.T @ X / ROWS
    return {"A": A, "b": random.standard_normal((2 * PROBLEMS, UNKNOWNS), np.float32)}


def smooth(random, shape, length):
    """Gaussian random fields of mean 0 and variance 1, one for every problem, on grids of this shape."""
    from scipy.ndimage import gaussian_filter

    found = np.empty((2 * PROBLEMS, *shape))
    for place in found:
        field = gaussian_filter(random.standard_normal([2 * n for n in shape]), length, mode="wrap")
        place[:] = field[tuple(slice(n) for n in shape)] / field.std()
    return found


def grid(random, shape):
    """Finite volumes of -div(k grad u) = f, u = 0 outside: a conductance for every face, and their sums."""
    k = np.exp(SPREAD * smooth(random, [n + 2 for n in shape], LENGTH))
    inner = (slice(None), *[slice(1, -1)] * len(shape))
    faces, diagonal = {}, 0.0
    for axis in range(1, len(shape) + 1):
        there = (*inner[:axis], slice(None), *inner[axis + 1 :])
        one = np.moveaxis(k[there], axis, 0)
        found = np.moveaxis(2 * one[:-1] * one[1:] / (one[:-1] + one[1:]), 0, axis).astype(np.float32)
        faces[f"axis {axis}"] = found
        size = found.shape[axis]
        diagonal = diagonal + found.take(range(size - 1), axis) + found.take(range(1, size), axis)
    return {**faces, "diagonal": diagonal, "b": smooth(random, shape, LENGTH / 2).astype(np.float32)}


def times(data, u):
    """A u of one problem on a grid, in NumPy or JAX."""
    import jax.numpy as jnp

    xp = np if isinstance(u, np.ndarray) else jnp
    out = data["diagonal"] * u
    for axis in range(u.ndim):
        face, moved = (xp.moveaxis(a, axis, 0) for a in (data[f"axis {axis + 1}"], u))
        flow = face[1:-1] * moved[1:], face[1:-1] * moved[:-1]
        none = xp.zeros_like(moved[:1])
        out = out - xp.moveaxis(xp.concatenate([flow[0], none]) + xp.concatenate([none, flow[1]]), 0, axis)
    return out


def made(name):
    random = np.random.default_rng(0)
    return dense(random) if name == "dense" else grid(random, SIDES[name])


def systems(data, chosen):
    """The problems as lfom takes them."""
    import lfom

    some = {key: value[chosen] for key, value in data.items()}
    if "A" in some:
        return lfom.LinearSystems(some["A"], some["b"])
    b, diagonal = some.pop("b"), some["diagonal"]
    return lfom.LinearSystems(times, b, data=some, diagonal=diagonal)


def jacobi_cg(product, diagonal, b, steps):
    """Conjugate gradients of one problem in float64."""
    w, r = np.zeros_like(b), b.copy()
    z = r / diagonal
    p, size = z, np.sum(r * z)
    for _ in range(steps):
        image = product(p)
        alpha = size / np.sum(p * image)
        w, r = w + alpha * p, r - alpha * image
        z, before = r / diagonal, size
        size = np.sum(r * z)
        if size <= 1e-24 * np.sum(b * b / diagonal):
            break
        p = z + size / before * p
    return w


def scored(data, found, steps):
    """Median errors of what was found for the held-out problems, and of Jacobi CG."""
    ours, theirs = [], []
    for at, w in zip(range(PROBLEMS, 2 * PROBLEMS), np.asarray(found, np.float64), strict=True):
        one = {key: np.asarray(value[at], np.float64) for key, value in data.items()}
        if "A" in one:
            product, diagonal = one["A"].__matmul__, np.diag(one["A"])
            best = np.linalg.solve(one["A"], one["b"])
        else:
            product, diagonal = (lambda v, one=one: times(one, v)), one["diagonal"]
            best = jacobi_cg(product, diagonal, one["b"], EXACT)
        energy = np.sum(best * one["b"])
        for errors, answer in ((ours, w), (theirs, jacobi_cg(product, diagonal, one["b"], steps))):
            off = answer - best
            errors.append((np.sum(off * product(off)) / energy) ** 0.5)
    return float(np.median(ours)), float(np.median(theirs))


def one(name, steps, structure):
    """Learn and solve in this process: a dictionary, printed as JSON."""
    data = made(name)
    import jax

    import lfom

    learning, held_out = systems(data, slice(PROBLEMS)), systems(data, slice(PROBLEMS, None))
    size = sum(value.nbytes for value in data.values())
    before = _peak()
    spent = [time.perf_counter(), time.process_time()]
    method = lfom.learn(learning, steps=steps, structure=structure)
    learned = time.perf_counter() - spent[0], time.process_time() - spent[1]
    spent = time.perf_counter()
    found = jax.block_until_ready(method.solve(held_out).value)
    first = time.perf_counter() - spent
    spent = time.perf_counter()
    jax.block_until_ready(method.solve(held_out).value)
    again = time.perf_counter() - spent
    peak = _peak()
    ours, theirs = scored(data, found, steps)
    return {
        "name": name,
        "unknowns": int(np.prod(learning.shape)),
        "structure": method.structure.name,
        "learn": learned[0],
        "processor": learned[1],
        "solve": first,
        "again": again,
        "data": size / 1e9,
        "before": before,
        "peak": peak,
        "error": ours,
        "jacobi": theirs,
    }


def _peak():
    """Gigabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def in_process(name, steps, structure):
    asked = [sys.executable, __file__, name, "--steps", str(steps), "--structure", structure, "--here"]
    done = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = []
    for line in done.stderr:
        print(line, end="", file=sys.stderr, flush=True)
        lines.append(line)
    out = done.stdout.read()
    if done.wait():
        return {"name": name, "failed": done.returncode}
    return {**json.loads(out.splitlines()[-1]), "lines": sum(" s] " in line for line in lines)}


def table(rows):
    print(
        "| problems | structure | learn (processor) | solve 40, again | problems, peak memory | error | Jacobi CG | progress |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        if "failed" in row:
            print(f"| {row['name']} | ended with status {row['failed']} |")
            continue
        print(
            f"| {row['name']}, {row['unknowns']:,} unknowns | `{row['structure']}` | {row['learn']:.0f} s ({row['processor']:.0f} s) | "
            f"{row['solve']:.1f} s, {row['again']:.2f} s | {row['data']:.2f} GB, {row['peak']:.1f} GB | {row['error']:.3g} | "
            f"{row['jacobi']:.3g} | {row['lines']} lines |"
        )


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("names", nargs="*", choices=["dense", *SIDES, []])
    asked.add_argument("--steps", type=int, default=50)
    asked.add_argument("--structure", default="auto")
    asked.add_argument("--here", action="store_true", help="one of them, in this process")
    given = asked.parse_args()
    if given.here:
        print(json.dumps(one(given.names[0], given.steps, given.structure)))
        return
    table([in_process(name, given.steps, given.structure) for name in given.names or ["dense", *SIDES]])


if __name__ == "__main__":
    main()
