"""HalTrapper (Zheng et al., ICCV 2025): provoke hallucinations, then contrast with them."""
