"""More problems than fit into memory, or than one process should solve: streams of pieces that are read, solved and written
side by side (`solve_stream`), the same on the workers of a Dask cluster, and methods on the blocks of Dask arrays.
What is finished is kept, and what cannot be solved is named."""

from lfom.scale.ends import Summary
from lfom.scale.stream import solve_stream

__all__ = ["solve_stream", "Summary"]
