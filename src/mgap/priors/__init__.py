"""What is learnt from a model before it decodes: prompts, states, the prior subspace, steering vectors, banks, prior maps."""
