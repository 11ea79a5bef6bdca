"""SGLang's model runner and logits processor, in the process that imports this; called by name from the tests.

Its own benchmark of single batches starts the runner, and makes batches of requests as its scheduler does.
"""

import json
from array import array
from functools import cache
from types import SimpleNamespace

import sglang.benchmark.one_batch as one_batch
import torch
from sglang.srt.layers.logits_processor import LogitsMetadata, LogitsProcessor
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.runner_utils.capture_mode import model_capture_mode
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import PortArgs, ServerArgs
from sglang_models import VOCAB, WIDTH, correction
from torch import nn

from mgap.serving.engine_settings import Serving
from mgap.serving.sglang import entry_point
from mgap.serving.sglang.batch_strengths import strengths_of
from mgap.serving.sglang.model_loading import attach_to_model

load_plugins()
CPU = {
    "device": "cpu", "dtype": "float32", "attention_backend": "torch_native", "sampling_backend": "pytorch",
    "skip_tokenizer_init": True, "disable_cuda_graph": True, "max_total_tokens": 2048, "max_running_requests": 8,
    "mem_fraction_static": 0.3, "log_level": "warning",
}  # fmt: skip


def arguments(model, settings=None, **more):
    """The arguments of a server that asks for MGAP, as SGLang has them after resolving and checking them."""
    override = {} if settings is None else {"json_model_override_args": json.dumps({"mgap": settings})}
    made = ServerArgs(model_path=model, **{**CPU, **override, **more})
    made.resolve_once()
    made.check_server_args()
    return made


def refusal(model, settings, **more):
    """What the arguments are refused with."""
    try:
        arguments(model, settings, **more)
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def refusal_by_an_unknown_version(model, settings):
    """The same where SGLang lacks something that the plugin needs, and how many hooks are registered there."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    kept, counts = dict(entry_point.REQUIRED), {name: len(hooks) for name, hooks in HookRegistry._hooks.items()}
    entry_point.REQUIRED["sglang.srt.layers.logits_processor.LogitsProcessor._get_logits"] = ("new_argument",)
    try:
        entry_point.register()
        added = [name for name, hooks in HookRegistry._hooks.items() if len(hooks) != counts.get(name, 0)]
        return [refusal(model, settings), refusal(model, None), added]
    finally:
        entry_point.REQUIRED.update(kept)
        entry_point.fault = None


@cache
def runner(model, settings):
    """SGLang's model runner with this model loaded. There is one in a process."""
    started = arguments(model, json.loads(settings), disable_radix_cache=True, disable_overlap_schedule=True)
    publish(started, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
    one_batch._init_process_global_configs()
    one_batch.get_tokenizer = lambda *_, **__: None
    made, _ = one_batch.load_model(started, PortArgs.init_new(started), 0, 0)
    return made


def requests_of(prompts, alphas, logprob_starts=None):
    made = []
    for place, (prompt, alpha) in enumerate(zip(prompts, alphas, strict=True)):
        custom = None if alpha is None else {"mgap_alpha": alpha}
        params = SamplingParams(temperature=0, max_new_tokens=16, custom_params=custom)
        start = -1 if logprob_starts is None else logprob_starts[place]
        request = Req(str(place), "", array("q", prompt), params, return_logprob=start >= 0, top_logprobs_num=0)
        request.full_untruncated_fill_ids, request.extend_end = request.origin_input_ids, len(prompt)
        request.logprob_start_len = start
        made.append(request)
    return made


def decode(model, settings, prompts, alphas, length):
    """Tokens of requests that are in one batch, by the runner: a prefill, then steps."""
    running = runner(model, settings)
    running.clear()
    tokens, _, batch = running.extend(requests_of(prompts, alphas))
    made = [tokens.tolist()]
    for _ in range(length - 1):
        tokens, _ = running.decode(tokens, batch)
        made.append(tokens.tolist())
    return [list(each) for each in zip(*made, strict=True)]


def prompt_logprobs(model, settings, prompts, alphas, chunk):
    """Logprobs of the prompts' own tokens, and the next token's logits: one batch's prefill, in chunks of so many rows."""
    running = runner(model, settings)
    running.clear()
    processor = running.torch_runner.model.logits_processor.input_logprob_processor
    processor.enable_logprobs_chunk, processor.logprobs_chunk_size = True, chunk
    seen, forward = [], running.torch_runner.forward
    running.torch_runner.forward = lambda batch, **more: seen.append(forward(batch, **more)) or seen[-1]
    try:
        running.extend(requests_of(prompts, alphas, [0] * len(prompts)))
    finally:
        del running.torch_runner.forward
    output = seen[0].logits_output
    return [output.input_token_logprobs.tolist(), output.next_token_logits.tolist()]


# --- one processor ---------------------------------------------------------------------------------------------------


class Parts(nn.Module):
    """What the end of a model of SGLang consists of."""

    def __init__(self, *, dtype, tied=False, vocab=VOCAB, **config):
        super().__init__()
        torch.manual_seed(3)
        scale = config.pop("logit_scale", None)
        torch.set_default_dtype(dtype)
        try:
            self.embed_tokens = VocabParallelEmbedding(vocab, WIDTH)
            self.lm_head = self.embed_tokens if tied else ParallelLMHead(vocab, WIDTH)
            self.logits_processor = LogitsProcessor(SimpleNamespace(vocab_size=vocab, **config), logit_scale=scale)
        finally:
            torch.set_default_dtype(torch.float32)
        for weight in self.parameters():
            nn.init.normal_(weight)
        self.requires_grad_(False)


def compare(model, settings, prior, alphas, own=0.75, dtype="float32", buffer=False, captured=False, **config):
    """Rows of these strengths (None: the server's) by the processor, against MGAP on the head of transformers.

    Gives how far they are, relative to the change, and for the rows with strength 0 whether they are the processor's own bits.
    """
    runner(model, settings)  # SGLang's process groups
    parts = Parts(dtype=getattr(torch, dtype), **config)
    processor, plain_logits = parts.logits_processor, parts.logits_processor._get_logits
    about = SimpleNamespace(
        model_path="/parts", revision=None, hidden_size=WIDTH, vocab_size=processor.vocab_size, dtype=getattr(torch, dtype),
        hf_config=SimpleNamespace(architectures=["LlamaForCausalLM"]),
    )  # fmt: skip
    (made,) = attach_to_model(parts, Serving(prior, {"alpha": own}), about)
    h = torch.randn(len(alphas), WIDTH, generator=torch.Generator().manual_seed(1)).to(about.dtype)
    metadata = LogitsMetadata(forward_mode=ForwardMode.DECODE)
    if buffer:
        metadata.next_token_logits_buffer = torch.empty(len(alphas), processor.vocab_size)
    with torch.no_grad():
        plain = plain_logits(h, parts.lm_head, LogitsMetadata(forward_mode=ForwardMode.DECODE))
        strengths_of(parts).begin([own if alpha is None else alpha for alpha in alphas])
        if captured:
            with model_capture_mode():
                logits = processor(None, h, parts.lm_head, metadata).next_token_logits
        else:
            logits = processor(None, h, parts.lm_head, metadata).next_token_logits
        expected = reference(parts, prior, h, [own if alpha is None else alpha for alpha in alphas], processor)
    off = torch.tensor([alpha == 0 or (alpha is None and own == 0) for alpha in alphas])
    return {
        "error": float((logits - expected)[~off].norm() / (expected - plain)[~off].norm()) if not off.all() else 0.0,
        "changed": float((expected - plain)[~off].norm() / plain[~off].norm()) if not off.all() else 0.0,
        "plain_is_equal": torch.equal(logits[off], plain[off]),
        "dtype": str(logits.dtype),
        "is_in_buffer": buffer and logits.data_ptr() == metadata.next_token_logits_buffer.data_ptr(),
        "way": made.corrected.way,
    }


def reference(parts, prior, h, alphas, processor):
    """MGAP of the transformers path, row by row, behind it the scale and the soft cap of the model."""
    head = nn.Linear(WIDTH, processor.vocab_size, bias=False)
    head.weight.copy_(parts.lm_head.weight[: processor.vocab_size])
    step = correction(head, prior, alpha=1.0)
    object.__setattr__(step.head, "scale", processor.logit_scale or 1.0)
    object.__setattr__(step.head, "cap", processor.final_logit_softcapping)
    wide = h.float()
    return step.head.post(step.step(wide, head(wide), torch.tensor(alphas)))


def no_rows(model, settings, prior):
    """The shape of the logits of no rows, as an idle rank asks for them."""
    running = runner(model, settings).torch_runner.model
    strengths_of(running).begin([])
    metadata = LogitsMetadata(forward_mode=ForwardMode.DECODE)
    return list(running.logits_processor(None, torch.zeros(0, WIDTH), running.lm_head, metadata).next_token_logits.shape)


def foreign_head(model, settings, prior):
    """What a call with another head than the measured one ends in."""
    running = runner(model, settings).torch_runner.model
    other = ParallelLMHead(VOCAB, WIDTH)
    try:
        running.logits_processor(None, torch.zeros(1, WIDTH), other, LogitsMetadata(forward_mode=ForwardMode.DECODE))
    except RuntimeError as error:
        return str(error)
    return ""


def update_weights(model, settings, folder):
    """What new weights for a running model are refused with."""
    return list(runner(model, settings).torch_runner.weight_updater.update_weights_from_disk(folder, "auto"))


def wrong_prior(model, settings, prior):
    """What a prior of another model is refused with, by the loaded one."""
    loaded = runner(model, settings).torch_runner
    try:
        attach_to_model(loaded.model, Serving(prior), loaded.model_config)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
