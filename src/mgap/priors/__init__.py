"""What is learnt from a model before decoding: prompts, states, the prior subspace, steering vectors, banks, prior maps."""
