"""How far methods move a state from normal decoding, where to, and what the prior is made of; with tables and figures."""
