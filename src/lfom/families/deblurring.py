"""Deblurring of photographs: minimise |K x - y|^2 + ridge |x|^2 over images x.

The images are patches of scikit-learn's two sample photographs: one to learn from, the other held
out. K blurs with an oblique Gaussian whose two widths and angle differ from image to image. Outside
the patch all is dark, so that no fast transform diagonalises K' K. Nothing is formed: K is applied
by a Fourier transform of the image with a dark margin, in which the blur is a product.
"""

from functools import cache
from typing import Any

import numpy as np
from jax import Array

from lfom.core.arrays import numpy_or_jax
from lfom.core.extras import needed
from lfom.families.family import PARTS, Family, rounded
from lfom.solving.linear_systems import LinearSystems

SIDE = 64
REACH = 7  # of the blur, in pixels
PADDED = 80  # at least SIDE + REACH, and quick to transform
WIDTHS = (1.0, 2.0)  # standard deviations of the blur, in pixels
NOISE = 0.02  # of the camera, on a scale from black 0 to white 1
RIDGE = 0.01


def blur(spectrum: Any, images: Any) -> Any:
    """K image; K is symmetric. spectrum (..., 80, 41), images (..., 64, 64)."""
    xp, padded = numpy_or_jax(images), (PADDED, PADDED)
    return xp.fft.irfft2(xp.fft.rfft2(images, s=padded) * spectrum, s=padded)[..., :SIDE, :SIDE]


def apply(data: dict[str, Array], image: Array) -> Array:
    """(K' K + ridge) image."""
    return blur(data["spectrum"], blur(data["spectrum"], image)) + RIDGE * image


def kernels(random: np.random.Generator, problems: int) -> np.ndarray:
    """Oblique Gaussians that sum to 1, (problems, 15, 15), symmetric about their centre."""
    widths = random.uniform(*WIDTHS, (2, problems, 1, 1))
    angle = random.uniform(0, np.pi, (problems, 1, 1))
    row, column = np.mgrid[-REACH : REACH + 1, -REACH : REACH + 1]
    along = np.cos(angle) * column + np.sin(angle) * row
    across = np.cos(angle) * row - np.sin(angle) * column
    kernel = np.exp(-((along / widths[0]) ** 2) / 2 - (across / widths[1]) ** 2 / 2)
    return kernel / kernel.sum(axis=(1, 2), keepdims=True)


def spectrum_of(kernel: np.ndarray) -> np.ndarray:
    """Its transform with the centre at the origin: real, since the kernel is symmetric."""
    wide = np.zeros((len(kernel), PADDED, PADDED))
    size = 2 * REACH + 1
    wide[:, :size, :size] = kernel
    return np.fft.rfft2(np.roll(wide, (-REACH, -REACH), axis=(1, 2))).real


@cache
def _photographs() -> dict[str, np.ndarray]:
    loaded = needed("sklearn.datasets", "the family deblurring")
    grey = [image.mean(axis=-1) / 255 for image in loaded.load_sample_images().images]
    return dict(zip(PARTS, grey, strict=True))


def _draw(part: str, problems: int, random: np.random.Generator) -> LinearSystems:
    photograph = _photographs()[part]
    rows, columns = (random.integers(0, size - SIDE + 1, problems) for size in photograph.shape)
    images = np.stack([photograph[r : r + SIDE, c : c + SIDE] for r, c in zip(rows, columns, strict=True)])
    kernel = kernels(random, problems)
    spectrum = spectrum_of(kernel)
    seen = blur(spectrum, images) + NOISE * random.standard_normal(images.shape)
    diagonal = blur(spectrum_of(kernel**2), np.ones_like(images)) + RIDGE
    data, b, diagonal = rounded(({"spectrum": spectrum, "seen": seen}, blur(spectrum, seen), diagonal))
    return LinearSystems(apply, b, data=data, diagonal=diagonal)


DEBLURRING = Family("deblurring", _draw, batch=32)  # 4,096 pixels
