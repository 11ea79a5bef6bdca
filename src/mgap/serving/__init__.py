"""MGAP inside vLLM: a plugin that corrects what the head gives, with the same arithmetic as everywhere in this package.

plugin.py      vLLM's entry point: every process calls `register`, which changes nothing unless an engine asks for MGAP
settings.py    what `additional_config` says
attaching.py   a loaded model, checked against the prior, whose `compute_logits` is corrected from then on
correcting.py  one call of the head
rows.py        which strength each row of a call has; requests.py and slots.py tell it (vLLM's two model runners)
requests.py    what a request may ask for, and its refusals
counts.py      how often and how strongly it acts

Around it, in processes that ask vLLM:

methods.py     which methods vLLM can decode with, and why not the others
checkpoint.py  models as vLLM reads them
offline.py     its offline engine, which `mgap run --engine vllm` asks; sampling.py says how
launch.py      the command that serves (`mgap serve`), checked before it is started
installed.py   whether vLLM is here, and will load the plugin
"""
