"""Prompts in spectral coordinates: the eigenvalues of M G, and what the question sees at each of them.

With M = R R^T every layer of GD++ is a function of R^T G R (docs/mathematics.md 5): it acts on each of its eigenvalues t by
itself, and the eigenvectors stay. The answer is w = R V g(t) V^T R^T b, so that all a prompt asks of a method is g at its
eigenvalues: sum over them of seen * g(t) should be the target.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from lfom.core.problems import Quadratic
from lfom.core.threads import in_threads

PIECE = 3_000  # prompts that are decomposed, or added up, at a time
TAIL, EVERY = 0.03, 12  # the share of prompts that are all taken, and of which others one is
MANY, FAR_TAIL, SELDOM = 1_000_000, 0.01, 48  # the same of so many prompts, that rare ones are many, too


@dataclass(frozen=True)
class Spectra:
    """Prompts in spectral coordinates, in float64. What is seen and the target may be multiplied by the root of a
    weight, of one on average."""

    t: Float[np.ndarray, "d prompts"]  # eigenvalues of M G
    seen: Float[np.ndarray, "k d prompts"]  # what the question sees of g at each of them
    target: Float[np.ndarray, "k prompts"]

    @property
    def prompts(self) -> int:
        return self.t.shape[-1]

    def __getitem__(self, part: slice) -> "Spectra":
        return Spectra(self.t[:, part], self.seen[..., part], self.target[:, part])

    def losses(self, g: Float[np.ndarray, "d prompts"]) -> Float[np.ndarray, " prompts"]:
        """The loss of every prompt, if these are the answers at its eigenvalues."""
        return np.sum((np.einsum("kdn,dn->kn", self.seen, g) - self.target) ** 2, axis=0)


def spectra(q: Quadratic, M: Any) -> Spectra:
    """The prompts of q, decomposed with the preconditioner M, symmetric and positive definite."""
    return _decomposed(q.gram, q.moment, q.probe, q.target, M)


def _decomposed(gram: Any, moment: Any, probe: Any, target: Any, M: Any) -> Spectra:
    root = np.linalg.cholesky(np.asarray(M, np.float64))
    gram, moment, probe, target = (np.asarray(a, np.float64) for a in (gram, moment, probe, target))
    pieces = [slice(at, at + PIECE) for at in range(0, moment.shape[-1], PIECE)]

    def one(piece: slice) -> tuple[np.ndarray, np.ndarray]:
        t, V = np.linalg.eigh(np.moveaxis(np.einsum("ia,ijn,jb->abn", root, gram[..., piece], root), -1, 0))
        rotated = np.einsum("ij,njk->ikn", root, V)  # R V
        asked = probe if probe.ndim == 2 else probe[..., piece]
        rows = np.einsum("ki,ijn->kjn" if probe.ndim == 2 else "kin,ijn->kjn", asked, rotated)
        return t.T, rows * np.einsum("ijn,in->jn", rotated, moment[:, piece])

    found = list(in_threads(one, pieces))
    t, seen = (np.concatenate([part[i] for part in found], axis=-1) for i in range(2))
    return Spectra(np.maximum(t, 0), seen, target)


def sampled_spectra(chunks: Iterable[Quadratic], M: Any, prompts: int = 0) -> Spectra:
    """Prompts for a mean that rare ones dominate: of each chunk all those with very large or very small
    eigenvalues, and every so many of the others, with weights that make up for it. prompts: how many are drawn in all."""
    tail, every = (FAR_TAIL, SELDOM) if prompts >= MANY else (TAIL, EVERY)
    rest = iter(chunks)
    first = next(rest)
    edges = np.quantile(_extremes(first.gram, M), 1 - tail, axis=1)[:, None]

    def part(q: Quadratic) -> Spectra:
        rare = (_extremes(q.gram, M) > edges).any(axis=0)
        chosen = rare | (np.arange(rare.size) % every == 0)
        root = np.sqrt(np.where(rare, 1.0, every)[chosen])
        gram, moment, target = (np.asarray(a)[..., chosen] for a in (q.gram, q.moment, q.target))
        probe = np.asarray(q.probe)
        found = _decomposed(gram, moment, probe if probe.ndim == 2 else probe[..., chosen], target, M)
        return Spectra(found.t, found.seen * root, found.target * root)

    parts = list(in_threads(part, itertools.chain([first], rest)))
    kept = sum(part.prompts for part in parts)
    scale = np.sqrt(kept / (len(parts) * first.moment.shape[-1]))
    t, seen, target = (
        np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in ("t", "seen", "target")
    )
    return Spectra(t, scale * seen, scale * target)


def _extremes(gram: Any, M: Any) -> Float[np.ndarray, "2 prompts"]:
    """What grows with the largest and with one over the smallest eigenvalue of M G: traces of its square and, but
    for a little, of its inverse, from the Cholesky factor C of R^T G R: |C^-1|^2. All prompts at once, entry by entry."""
    gram, root = np.asarray(gram, np.float64), np.linalg.cholesky(np.asarray(M, np.float64))
    d = len(gram)
    S = np.kron(root, root).T @ gram.reshape(d * d, -1)  # R^T G R
    square = np.einsum("in,in->n", S, S)
    S = S.reshape(gram.shape)
    S[range(d), range(d)] += 1e-6 * np.trace(S).mean()
    C, inverse = np.zeros_like(S), np.zeros_like(S)
    for j in range(d):
        for k in range(j):
            S[j:, j] -= C[j:, k] * C[j, k]
            inverse[j, :j] -= C[j, k] * inverse[k, :j]
        C[j:, j] = S[j:, j] / np.sqrt(S[j, j])
        inverse[j, j] = 1
        inverse[j, : j + 1] /= C[j, j]
    return np.stack([square, np.einsum("ijn,ijn->n", inverse, inverse)])
