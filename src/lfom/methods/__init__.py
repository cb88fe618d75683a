"""Methods by name: classical ones, Memformers, and the constructions of the paper's theorems."""
