"""What is learnt from a model before decoding: prompts, states, subspaces, steering vectors, banks, prior maps, null spaces."""
