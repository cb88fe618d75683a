"""Figure batch_size_10: a Memformer trained on 10 prompts against CGD, on those prompts and on fresh ones."""

from lfom.experiments.small_batches import shows, small_batch, trained
from lfom.experiments.workbench import Outcome, Workbench

TITLE = "Batch size 10: on its own prompts and on fresh ones"
SECTION = "3.4, Figure batch_size_10"
SHOWS, TRAINED = shows("10 prompts"), trained("10 prompts")


def run(bench: Workbench) -> Outcome:
    return small_batch(bench, 10, "batch_size_10")
