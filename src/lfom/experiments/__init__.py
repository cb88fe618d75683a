"""The paper's figures, by its labels, and more that its text asks for."""

import importlib
from typing import Any

# In the order in which they are run: those that share models stand together.
_NAMES = (
    "cg_without_preconditioning", "cg_with_preconditioning", "lfom_nonisotropic", "nag_vs_Memformer",
    "mgd_vs_Memformer", "text_spectrum", "other_covariates", "free_attention", "lfom_gdpp_nonisotropic",
    "richer_memory", "functional_gradient", "glm", "efficiency", "sigma_convergence", "layers5", "layers7",
    "batch_size_1", "batch_size_10", "batch_size_sweep", "ExtractedLFOMvsCGD", "learnability",
    "5head_attention_experiment", "mixture_of_experts_ood", "adaptation", "how_many_experts",
    "gaussian_mixture_model_ood_lt", "gaussian_mixture_model_ood_mem", "prefixes", "guarantee",
    "published_curves",
)  # fmt: skip
_FILES = {  # where it is not the name
    "nag_vs_Memformer": "against_momentum", "mgd_vs_Memformer": "against_momentum", "layers5": "deeper",
    "layers7": "deeper", "batch_size_1": "small_batches", "batch_size_10": "small_batches",
    "ExtractedLFOMvsCGD": "extracted_lfom_vs_cgd", "5head_attention_experiment": "five_heads",
    "adaptation": "adaptation_shifts",
}  # fmt: skip
EXPERIMENTS: dict[str, str] = {name: _FILES.get(name, name) for name in _NAMES}


def experiment_named(name: str) -> Any:
    """One of ours, imported when it is asked for: every command reads this file."""
    from lfom.experiments.experiment import experiments_in

    found = experiments_in(importlib.import_module(f"lfom.experiments.{EXPERIMENTS[name]}"))
    return next(one for one in found if one.name == name)
