"""Speed, as ratios measured side by side in one run."""

from collections.abc import Callable

from lfom.bench.adapt import bench_adapt
from lfom.bench.forward import bench_forward
from lfom.bench.timing import Ratio
from lfom.bench.train import bench_train

BENCHMARKS: dict[str, Callable[[], list[Ratio]]] = {
    "forward": bench_forward,
    "train": bench_train,
    "adapt": bench_adapt,
}

__all__ = ["BENCHMARKS", "Ratio"]
