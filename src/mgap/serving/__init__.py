"""MGAP inside vLLM: a plugin corrects the logits behind the head, with the arithmetic of the rest of the package.

plugin.py           vLLM's entry point; every process calls `register`, which changes nothing unless an engine asks for MGAP
engine_settings.py  the settings in `additional_config`, and a request's own strength
attaching.py        checks a loaded model against the prior and corrects its `compute_logits` from then on
correcting.py       one call of the head
row_strengths.py    the strength of each row in a call; filled by requests.py and request_rows.py (vLLM's two model runners)
requests.py         what a request may ask for, and refusals
counts.py           how often and how strongly MGAP acts; drift.py warns when requests change
reloading.py        another prior for a running engine
status_endpoint.py  what a server says of MGAP over HTTP, and to Prometheus (metrics.py)

Around the engine:

servable.py         which methods vLLM can decode with, and why not the others
checkpoint.py       model folders converted to the form that vLLM reads
remote/             runs against servers that are already up: `mgap run --engine server`
offline.py          the offline engine behind `mgap run --engine vllm`, with sampling.py, extension.py and vllm_worker.py
vllm_run.py         checks and starts such a run
launch.py           builds and checks the command of `mgap serve`
installed.py        whether vLLM is installed and will load the plugin
"""
