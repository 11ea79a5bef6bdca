"""How the pocket models were trained and measured: recipes, cards, comparisons. In the repository, not in the wheel."""
