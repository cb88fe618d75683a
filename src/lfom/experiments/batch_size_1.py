"""Figure batch_size_1: a Memformer trained on one prompt against CGD, on those prompts and on fresh ones."""

from lfom.experiments.small_batches import shows, small_batch, trained
from lfom.experiments.workbench import Outcome, Workbench

TITLE = "Batch size 1: on its own prompts and on fresh ones"
SECTION = "3.4, Figure batch_size_1"
SHOWS, TRAINED = shows("one prompt"), trained("one prompt")


def run(bench: Workbench) -> Outcome:
    return small_batch(bench, 1, "batch_size_1")
