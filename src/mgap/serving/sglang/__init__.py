"""MGAP inside SGLang: hooks of its plugin framework correct the logits of its `LogitsProcessor`, as is done in vLLM.

entry_point.py          SGLang's entry point; every process calls `register`; engines that do not ask for MGAP stay as they are
server_settings.py      the settings in `--json-model-override-args`, and what an engine that asks for MGAP may not be
model_loading.py        checks a loaded model against the prior and corrects its logits from then on
corrected_processor.py  one call of a logits processor, eager or in a CUDA graph
batch_strengths.py      the strength of each row in a call
request_checks.py       what a request may ask for, and refusals
"""
