"""How far and where methods move states from plain decoding, and what the prior consists of; with tables and figures."""
