"""What methods are tried on: a prompt, distributions of prompts, and shifts of them."""
