"""AMBER (Wang et al., 2023): descriptions and yes/no questions, scored without a judge."""
