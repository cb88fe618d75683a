"""Which tests `make test` leaves to `make test-all`.

    python -m pytest --times build/times.jsonl     # all of them, with the processor time of each
    python -m tests.slow build/times.jsonl         # writes tests/slow.txt

A test stays if it is fast, if it is the fastest of its function and not very slow, or if it is one of ALWAYS. What the file
has no time of, as after `pytest --quick --times`, stays where it is.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

LIST = Path(__file__).with_name("slow.txt")
FAST, NOT_VERY_SLOW = 0.15, 1.5  # seconds of processor time
NAMED = (  # the only ones that see a slip which the tests once missed (the first part of tests/mutants/slips.toml)
    "tests/test_adaptation.py::test_an_expert_that_overflows_is_never_chosen",
    "tests/test_certificates.py::test_certified_is_what_the_steps_that_run_contract",
    "tests/test_evaluation.py::test_the_standard_error_of_a_difference_is_its_spread_over_repetitions",
    "tests/test_distributions.py::test_gram_matrices_of_long_contexts_are_wishart",
    "tests/test_files.py",
    "tests/test_learning.py::test_hard_problems_count_less_than_typical_ones",
    "tests/test_learning.py::test_structures_that_are_tried_together_score_as_they_do_alone",
    "tests/test_least_squares.py::test_the_last_passes_together_are_one_larger_sample",
    "tests/test_least_squares.py::test_what_the_held_out_part_of_a_set_gainsays_is_not_learned",
    "tests/test_optimum.py::test_the_loss_comes_from_prompts_that_nothing_was_fitted_to",
    "tests/test_shifts.py::test_label_noise_has_its_size_and_does_not_know_the_covariates",
    "tests/test_solving.py::test_a_problem_counts_steps_until_it_meets_the_tolerance_and_no_further[conjugate gradients]",
    "tests/test_solving.py::test_a_problem_counts_steps_until_it_meets_the_tolerance_and_no_further[losses, then line searches]",
    "tests/test_solving.py::test_a_problem_counts_steps_until_it_meets_the_tolerance_and_no_further[register]",
    "tests/test_solving.py::test_no_step_of_the_line_search_climbs",
    "tests/test_spectral.py::test_the_loss_is_that_of_other_prompts",
    "tests/test_theorems.py::test_conjugate_gradients_stop_at_the_square_of_what_is_asked",
    "tests/test_workbench.py::test_one_dataset_under_two_labels_has_prompts_of_each",
    "tests/test_workbench.py::test_trainings_and_depths_are_not_taken_for_one_another",
    "tests/test_workbench.py::test_what_was_made_for_one_label_is_not_handed_out_for_another",
)
ALWAYS = (  # what no other test sees at all: several processes, devices, kills, and what a visitor pastes
    "tests/test_cluster.py::test_a_killed_worker_costs_nothing",
    "tests/test_devices.py::test_fits_and_scores_are_the_same_to_the_last_bit_on_1_2_and_4_devices",
    "tests/test_docs.py::test_every_block_of_a_page_runs_as_pasted[README.md]",
    "tests/test_docs.py::test_every_block_of_a_page_runs_as_pasted[docs/problems.md]",
    "tests/test_docs.py::test_every_block_of_a_page_runs_as_pasted[docs/scale.md]",
    "tests/test_docs.py::test_every_block_of_a_page_runs_as_pasted[docs/start.md]",
    "tests/test_hosts.py::test_a_process_that_is_killed_ends_the_other_and_one_alone_goes_on",
    "tests/test_hosts.py::test_several_processes_train_what_one_does[2]",
    "tests/test_mutants.py",
    "tests/test_packaging.py::test_an_empty_environment_gets_all_it_needs[*.whl]",
    "tests/test_packaging.py::test_everything_is_imported_without_the_extras",
    "tests/test_packaging.py::test_statements_are_verified_by_what_was_installed",
    "tests/test_packaging.py::test_the_sdist_builds_the_same_wheel",
    "tests/test_packaging.py::test_the_sdist_holds_what_a_checkout_does",
    "tests/test_packaging.py::test_the_wheel_holds_the_package_and_its_data",
    "tests/test_reproduce.py::test_kills_and_full_disks_lose_nothing",
    "tests/test_sizes.py::test_a_problem_is_solved_as_it_is_alone[windows-options2]",
    "tests/test_slow.py",
    "tests/test_train_command.py::test_a_killed_run_ends_with_the_same_bits[least squares]",
    *NAMED,
)


def listed() -> set[str]:
    """The names of slow tests."""
    return {line for line in LIST.read_text("utf-8").splitlines() if line and not line.startswith("#")}


def slow(times: dict[str, float]) -> Iterator[str]:
    """Of tests with these times, those that are left out. Examples in docstrings stay."""
    fastest: dict[str, str] = {}
    for name in sorted(times, key=times.__getitem__):
        fastest.setdefault(function_of(name), name)
    for name, seconds in sorted(times.items()):
        first = fastest[function_of(name)] == name
        if seconds >= (NOT_VERY_SLOW if first else FAST) and not name.startswith((*ALWAYS, "src/")):
            yield name


def function_of(name: str) -> str:
    return name.split("[")[0]


def read(files: Iterable[str]) -> dict[str, float]:
    rows = [json.loads(line) for file in files for line in Path(file).read_text("utf-8").splitlines()]
    return {row["test"]: row["seconds"] for row in rows}


if __name__ == "__main__":
    times = read(sys.argv[1:])
    found = sorted({*slow(times), *(listed() - times.keys())})
    LIST.write_text("# Left to `make test-all`; made by tests/slow.py.\n" + "\n".join(found) + "\n", "utf-8")
    print(f"{len(found)} tests in {LIST}")
