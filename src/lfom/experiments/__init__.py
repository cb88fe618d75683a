"""The paper's figures, one file each, named by its labels, and more that its text asks for."""

# In the order in which they are run: those that share models stand together.
_NAMES = (
    "cg_without_preconditioning", "cg_with_preconditioning", "lfom_nonisotropic", "nag_vs_Memformer",
    "mgd_vs_Memformer", "lfom_gdpp_nonisotropic", "efficiency", "sigma_convergence", "layers5", "layers7",
    "batch_size_1", "batch_size_10", "batch_size_sweep", "ExtractedLFOMvsCGD", "learnability",
    "5head_attention_experiment", "mixture_of_experts_ood", "adaptation", "how_many_experts",
    "gaussian_mixture_model_ood_lt", "gaussian_mixture_model_ood_mem",
)  # fmt: skip
_FILES = {  # where it is not the name
    "ExtractedLFOMvsCGD": "extracted_lfom_vs_cgd",
    "5head_attention_experiment": "five_heads",
    "adaptation": "adaptation_shifts",
}
EXPERIMENTS: dict[str, str] = {name: _FILES.get(name, name.lower()) for name in _NAMES}
