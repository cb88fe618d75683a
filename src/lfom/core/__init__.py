"""The one idea: problems, readers, memories, coefficients, preconditioners, and the loop that runs them."""
