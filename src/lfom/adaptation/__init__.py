"""Test-time adaptation: a trained model fitted to new prompts, by what they show themselves (Section 4.2)."""

from lfom.adaptation.adapting import SETTINGS, Adaptation, adapt
from lfom.adaptation.held_out import context_error, hold_out
from lfom.adaptation.per_prompt import PerPrompt

__all__ = ["SETTINGS", "Adaptation", "PerPrompt", "adapt", "context_error", "hold_out"]
