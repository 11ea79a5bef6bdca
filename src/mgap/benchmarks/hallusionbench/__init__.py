"""HallusionBench (Guan et al., CVPR 2024): yes/no questions in groups, about original and edited pictures and about none."""
