"""MGAP inside vLLM: a plugin that corrects what the head gives, with the same arithmetic as everywhere in this package.

plugin.py           vLLM's entry point: every process calls `register`, which changes nothing unless an engine asks for MGAP
engine_settings.py  what `additional_config` says
attaching.py        a loaded model, checked against the prior, whose `compute_logits` is corrected from then on
correcting.py       one call of the head
row_strengths.py    which strength each row of a call has; requests.py and request_rows.py tell it (vLLM's two model runners)
requests.py         what a request may ask for, and its refusals
counts.py           how often and how strongly it acts
extension.py        what an offline engine can be asked about it

Around it, in processes that ask vLLM:

servable.py         which methods vLLM can decode with, and why not the others
checkpoint.py       models as vLLM reads them
vllm_run.py         `mgap run --engine vllm`: refusals, priors, and its worker, vllm_worker.py
offline.py          vLLM's offline engine, which that worker asks; sampling.py says how
launch.py           the command that serves (`mgap serve`), checked before it is started
installed.py        whether vLLM is here, and will load the plugin
"""
