"""Figure batch_size_10: a Memformer trained on 10 prompts against CGD, on those prompts and on fresh ones."""

from lfom.experiments.small_batches import small_batch
from lfom.experiments.workbench import Outcome, Workbench

TITLE = "Batch size 10: on its own prompts and on fresh ones"
SECTION = "3.4, Figure batch_size_10"
SHOWS = (
    "What the paper's comparison leaves out: the model that beats CGD on the 10 prompts it was trained on, "
    "and the same model on fresh prompts. CGD is shown on both."
)
TRAINED = (
    "Bank with scalar coefficients (own coefficient 1), full A in every layer, trained in each run on 10 prompts "
    "(one query each) and no other. paper: 1,000 Adam steps; converged: 10,000 with a falling rate, "
    "until these prompts are fitted. A model has 25 to 103 parameters, so losses on the training prompts go "
    "to zero (floor -60 for zero to rounding). Fresh prompts: the query averaged out."
)


def run(bench: Workbench) -> Outcome:
    return small_batch(bench, 10, "batch_size_10")
