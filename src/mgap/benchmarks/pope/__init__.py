"""POPE (Li et al., EMNLP 2023): yes/no questions about objects."""
