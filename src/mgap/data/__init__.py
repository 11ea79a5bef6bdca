"""Pictures, prompts and benchmarks as users have them."""
