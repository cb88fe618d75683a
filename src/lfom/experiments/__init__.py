"""The paper's figures, one file each, named by its labels, and more that its text asks for."""

# In the order in which they are run: those that share models stand together.
EXPERIMENTS: dict[str, str] = {
    "cg_without_preconditioning": "cg_without_preconditioning",
    "cg_with_preconditioning": "cg_with_preconditioning",
    "lfom_nonisotropic": "lfom_nonisotropic",
    "nag_vs_Memformer": "nag_vs_memformer",
    "mgd_vs_Memformer": "mgd_vs_memformer",
    "lfom_gdpp_nonisotropic": "lfom_gdpp_nonisotropic",
    "efficiency": "efficiency",
    "sigma_convergence": "sigma_convergence",
    "layers5": "layers5",
    "layers7": "layers7",
    "batch_size_1": "batch_size_1",
    "batch_size_10": "batch_size_10",
    "batch_size_sweep": "batch_size_sweep",
    "ExtractedLFOMvsCGD": "extracted_lfom_vs_cgd",
    "learnability": "learnability",
    "5head_attention_experiment": "five_heads",
    "mixture_of_experts_ood": "mixture_of_experts_ood",
    "adaptation": "adaptation_shifts",
    "how_many_experts": "how_many_experts",
    "gaussian_mixture_model_ood_lt": "gaussian_mixture_model_ood_lt",
    "gaussian_mixture_model_ood_mem": "gaussian_mixture_model_ood_mem",
}
