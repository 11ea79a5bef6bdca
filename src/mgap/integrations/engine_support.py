"""Which engine decodes with which method in which mode, what its answers equal, and why it refuses the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mgap.methods.base import Method, Seam
from mgap.methods.mgap import MGAP
from mgap.registry import METHODS
from mgap.serving import servable
from mgap.types import Mode


@dataclass(frozen=True)
class Support:
    """Whether something is done, with a remark: how, or why not."""

    is_done: bool
    remark: str = ""


YES = Support(True)


@dataclass(frozen=True)
class Engine:
    """A program that decodes, as a user meets it."""

    name: str
    call: str  # how one asks for a method there
    page: str  # of the documentation
    equals: str  # what its answers are equal to, and where that was seen
    why_not: Callable[[type[Method]], str]  # why it cannot decode with a method; "": it can
    modes: Mapping[Mode, Support]  # for the methods that it can decode with

    def methods(self) -> list[str]:
        """The names of the methods that it can decode with."""
        return [name for name, method in sorted(METHODS.loaded().items()) if not self.why_not(method)]


def why_refused(method: type[Method], mode: Mode) -> str:
    """Why a method does not accept a mode on transformers models; "": it does."""
    if mode in method.modes:
        return ""
    if method.seam is Seam.SEARCH:
        return "it is a search of its own, among beams and back"
    if mode is Mode.ASSISTED:
        return "drafted tokens are taken back, and what it keeps beside the main rows cannot be"
    return "its hooks inside the blocks differ from step to step, and captured steps run none of those"


def only_mgap(method: type[Method]) -> str:
    """Engines to which only the correction behind the head was carried."""
    return "" if issubclass(method, MGAP) else "only MGAP's correction behind the head was carried there"


TRANSFORMERS = Engine(
    name="transformers",
    call="`mgap.attach(model, method)`, `mgap.load`, every command",
    page="methods/README.md",
    equals="the reference: formulas checked by `mgap verify`",
    why_not=lambda _method: "",
    modes=dict.fromkeys(Mode, YES),
)
CUSTOM_GENERATE = Engine(
    name="custom_generate",
    call="`model.generate(custom_generate=REPO)`, without this package",
    page="custom-generate.md",
    equals="`mgap.attach`: tokens and logits, float32 and 16 bits",
    why_not=only_mgap,
    modes={**dict.fromkeys(Mode, YES), Mode.COMPILE: Support(True, "what was compiled runs uncompiled for the call")},
)
VLLM = Engine(
    name="vllm",
    call="`mgap serve`, `mgap run --engine vllm` or `--engine server`, or vLLM itself with its plugin",
    page="serving.md",
    equals="transformers' tokens in float32; in 16 bits as near as vLLM's kernels are",
    why_not=servable.why_not,
    modes={
        **dict.fromkeys((Mode.GREEDY, Mode.SAMPLE, Mode.BATCH, Mode.STREAM, Mode.SEQUENCES), YES),
        Mode.BEAM: Support(False, "in a run, where vLLM's engine has no beams; its server searches at the server's strength"),
        Mode.ASSISTED: Support(True, "vLLM drafts by itself; a strength for each request needs its second model runner"),
        Mode.STATIC: Support(False, "vLLM keeps its cache in pages"),
        Mode.COMPILE: Support(True, "vLLM compiles by itself"),
    },
)
SGLANG = Engine(
    name="sglang",
    call="SGLang itself, with its plugin",
    page="sglang.md",
    equals="transformers' tokens in float32, on text in SGLang's CPU engine",
    why_not=only_mgap,
    modes={
        **dict.fromkeys((Mode.GREEDY, Mode.SAMPLE, Mode.BATCH, Mode.STREAM, Mode.SEQUENCES), YES),
        Mode.BEAM: Support(False, "the rows of its beam search belong to no request"),
        Mode.ASSISTED: Support(False, "with drafts SGLang does not say which rows are whose"),
        Mode.STATIC: Support(False, "SGLang keeps its cache in pages"),
        Mode.COMPILE: Support(False, "a compiled step would keep its first strengths"),
    },
)
MLX = Engine(
    name="mlx",
    call="`mgap.integrations.mlx`: `MlxModel.load`, or `attach` in a program of mlx-vlm",
    page="mlx.md",
    equals="transformers' tokens in float32 on both pocket models, on MLX's CPU build",
    why_not=only_mgap,
    modes={
        **dict.fromkeys((Mode.GREEDY, Mode.SAMPLE, Mode.STREAM), YES),
        Mode.BATCH: Support(True, "by mlx-vlm's own `batch_generate`, with `attach`"),
        Mode.BEAM: Support(False, "mlx-vlm searches among no beams"),
        Mode.SEQUENCES: Support(False, "mlx-vlm draws one answer at a time"),
        Mode.ASSISTED: Support(
            False,
            "mlx-vlm checks drafted tokens past the head; past some tied ones it does so unnoticed, so give no draft_model",
        ),
        Mode.STATIC: Support(False, "mlx-vlm has a cache of its own"),
        Mode.COMPILE: Support(False, "mlx-vlm compiles by itself where it can"),
    },
)
ENGINES = (TRANSFORMERS, CUSTOM_GENERATE, VLLM, SGLANG, MLX)
