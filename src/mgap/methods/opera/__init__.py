"""OPERA (Huang et al., CVPR 2024): a beam search that goes back."""
