"""MGAP inside vLLM: a plugin that corrects what the head gives, with the same arithmetic as everywhere in this package.

plugin.py      vLLM's entry point: every process calls `register`, which changes nothing unless an engine asks for MGAP
settings.py    what `additional_config` says
attaching.py   a loaded model, checked against the prior, whose `compute_logits` is corrected from then on
correcting.py  one call of the head
rows.py        which strength each row of a call has; requests.py and slots.py tell it (vLLM's two model runners)
requests.py    what a request may ask for, and its refusals
counts.py      how often and how strongly it acts
"""
