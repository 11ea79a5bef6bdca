"""MME (Fu et al., 2023): two yes/no questions about each picture, in fourteen tasks."""
