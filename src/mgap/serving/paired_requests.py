"""Two contexts for one answer in vLLM, as a proof: two requests that get every token in the same step, of joined logits.

    s = CD(l, l', alpha, beta)        both requests' logits become s, so both go on with the same token

One of the pair sees the picture, the other what a contrast compares it with: a null image, a disturbing instruction. They are
ordinary requests of a continuous batch, with paged caches of their own. `PairScheduler` keeps them in step, `PairedLogits`
joins their rows. For the first model runner; off unless an engine is started with both (docs/serving.md, "Two contexts").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from mgap.errors import SettingError
from mgap.methods.kinds.branch import contrast
from mgap.serving.engine_settings import Serving
from mgap.serving.pair_membership import Membership
from mgap.serving.row_strengths import RowStrengths, row_strengths_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput


LIMITS = ("max_num_running_reqs", "max_num_active_reqs")  # of vLLM's scheduler; who waits counts


class PairScheduler(Scheduler):
    """vLLM's scheduler, under which a pair's requests are given their next token in the same step or not at all.

    A prompt is read up to its last token; then the request waits, its caches kept, until the other has read its own as far.
    """

    running: list[Request]

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        self.pairs: dict[str, dict[bool, str]] = {}  # by the pair's id: is_main, and the request's id
        for name, is_on in (
            ("prefix caching", vllm_config.cache_config.enable_prefix_caching),  # a prompt may begin at its last token
            ("speculation", vllm_config.speculative_config is not None),
            ("async scheduling", vllm_config.scheduler_config.async_scheduling),
            ("the second model runner", vllm_config.use_v2_model_runner),
        ):
            if is_on:
                raise SettingError(f"pairs of requests do not go with {name}: switch it off")

    def add_request(self, request: Request) -> None:
        if member := member_of(request):
            self.pairs.setdefault(member.id, {})[member.is_main] = request.request_id
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        held = [request for request in self.running if self._waits(request)]
        self.running = [request for request in self.running if request not in held]
        limits = {name: getattr(self, name) for name in LIMITS if hasattr(self, name)}
        try:
            for name, limit in limits.items():
                setattr(self, name, limit - len(held))
            return super().schedule(*args, **kwargs)
        finally:
            self.running = [*held, *self.running]
            for name, limit in limits.items():
                setattr(self, name, limit)

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        counts = scheduler_output.num_scheduled_tokens
        for name, count in counts.items():
            request = self.requests[name]
            if member_of(request) is None or count < _left(request):
                continue
            if count > 1:  # not its last token yet
                counts[name] -= 1
                scheduler_output.total_num_scheduled_tokens -= 1
            elif (other := self._other(request)) is None or counts.get(other.request_id) != _left(other):
                raise RuntimeError("mgap: one request of a pair got no room in a step: give the engine more memory for caches")
        super()._update_after_schedule(scheduler_output)

    def finish_requests(self, request_ids: Any, *args: Any, **kwargs: Any) -> Any:
        """Who is aborted takes the other along."""
        names = {request_ids} if isinstance(request_ids, str) else set(request_ids or ())
        others = {other.request_id for name in names if name in self.requests and (other := self._other(self.requests[name]))}
        return super().finish_requests(names | others if request_ids else request_ids, *args, **kwargs)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        if member := member_of(request):
            self.pairs[member.id].pop(member.is_main, None)
            if not self.pairs[member.id]:
                del self.pairs[member.id]
        return super()._free_request(request, *args, **kwargs)

    def _waits(self, request: Request) -> bool:
        """Whether it has all but its last token read, and the other has not."""
        if member_of(request) is None or _left(request) > 1:
            return False
        other = self._other(request)
        if other is None and request.num_output_tokens:
            raise RuntimeError("mgap: one request of a pair ended before the other: give both the same max_tokens and stops")
        return other is None or other not in self.running or _left(other) > 1

    def _other(self, request: Request) -> Request | None:
        member = member_of(request)
        return None if member is None else self.requests.get(self.pairs.get(member.id, {}).get(not member.is_main, ""))


def member_of(request: Request) -> Membership | None:
    return Membership.of(request.sampling_params.extra_args if request.sampling_params else None)


def _left(request: Request) -> int:
    """Tokens to compute before it gets a new one."""
    return int(request.num_tokens - request.num_computed_tokens)


class PairedLogits:
    """`compute_logits` with the rows of pairs joined, in float32; other rows are the model's own."""

    def __init__(self, compute: Callable[..., Tensor | None], rows: RowStrengths) -> None:
        self.compute, self.rows = compute, rows

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
        logits = self.compute(hidden_states, *args, **kwargs)
        members, self.rows.pairs = self.rows.pairs, {}
        if logits is None or not members:
            return logits
        logits = logits.float()
        rows: dict[str, dict[bool, int]] = {}
        for row, member in members.items():
            rows.setdefault(member.id, {})[member.is_main] = row
        for both in rows.values():
            if len(both) == 2:  # else one is still reading its prompt, and no token comes of its row
                main, other, member = both[True], both[False], members[both[True]]
                logits[main] = logits[other] = contrast(logits[main], logits[other], member.alpha, member.beta)
        return logits


def attach_pairs(model: nn.Module, config: VllmConfig) -> None:
    """Join the logits of pairs from now on."""
    if Serving.of_engine(config) is not None:
        raise SettingError("pairs of requests are decoded without mgap: leave it out of additional_config, or the scheduler")
    model.__dict__["compute_logits"] = PairedLogits(model.compute_logits, row_strengths_of(config))  # type: ignore[arg-type]
