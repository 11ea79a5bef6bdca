"""HalTrapper (Zheng et al., ICCV 2025): provoke inventions, then contrast with them."""
