"""In 16 bits: what methods combine and return is float32 on every path, and plain decoding stays the model's own."""

import pytest
import torch
from torch import nn

import mgap
from mgap.backbones.exact_product import exact_product, is_exact, make_exact, make_own, split_states, why_rounded
from mgap.backbones.head import Head
from mgap.decoding.attach import attach
from mgap.errors import SettingError
from mgap.methods.base import Seam
from mgap.registry import METHODS
from tests.methods.builders import STRONG, build, build_at_zero, build_with

QUESTION = "Is there a dog?"
ONE_BRANCH = [  # more rows in a forward are rounded otherwise, whatever a method does with them
    name
    for name in METHODS.names()
    if METHODS.get(name).zero is not None and METHODS.get(name).seam in (Seam.HEAD, Seam.LAYERS)
]


@pytest.fixture(scope="module", params=["bfloat16", pytest.param("float16", marks=pytest.mark.long)])
def half(request, family, checkpoints):
    return mgap.load(str(checkpoints[family]), dtype=request.param)


@pytest.fixture(scope="module")
def half_prior(half):
    return mgap.Subspace.fit(half, mgap.default_prompts())


def forwards(model, picture, method, **options):
    """The logits of every forward of an answer, as the model returns them, and the head's input."""
    logits, states, backbone = [], [], model.backbone
    with model.using(method) if method is not None else torch.no_grad():
        handles = [
            backbone.model.register_forward_hook(lambda _module, _args, out: logits.append(out.logits)),
            backbone.head_module.register_forward_pre_hook(lambda _module, args: states.append(args[0])),
        ]
        try:
            model.answer(picture, QUESTION, max_new_tokens=2, **options)
        finally:
            for handle in handles:
                handle.remove()
    return logits, states


@pytest.mark.parametrize("name", METHODS.names())
def test_every_method_returns_float32(half, half_prior, picture, name):
    logits, _ = forwards(half, picture, build(name, half_prior))
    assert {part.dtype for part in logits} == {torch.float32}
    assert not is_exact(half.backbone.head_module)
    rounded, _ = forwards(half, picture, build_with(name, half_prior, {**STRONG.get(name, {}), "exact": False}))
    if (
        METHODS.get(name).seam not in (Seam.ATTENTION, Seam.SEARCH) and name != "nullu"
    ):  # those leave the model's output as it is
        assert rounded[-1].dtype == torch.float32


@pytest.mark.parametrize("name", ONE_BRANCH)
def test_zero_strength_is_the_plain_model_to_the_bit(half, half_prior, picture, name):
    plain, _ = forwards(half, picture, None)
    assert plain[0].dtype == half.backbone.model.dtype
    found, _ = forwards(half, picture, build_at_zero(name, half_prior))
    for one, other in zip(plain, found, strict=True):
        allowed = other[:, -1] > -torch.inf  # DeCo and the like rule tokens out, and leave the others
        assert torch.equal(one[:, -1].float()[allowed], other[:, -1].float()[allowed])


@pytest.mark.parametrize("alpha", [0.25, 6.0])
@pytest.mark.filterwarnings("ignore:alpha=:UserWarning")
def test_the_cut_state_is_read_without_rounding(half, half_prior, picture, alpha):
    logits, states = forwards(half, picture, mgap.MGAP(half_prior, alpha=alpha))
    weight, basis = half.backbone.head_module.weight.detach().double().cpu(), half_prior.basis.double()
    for found, h in zip(logits, (state.double().cpu() for state in states), strict=True):
        entropy = torch.special.entr((h @ weight.T).softmax(-1)).sum(-1)
        part = h @ basis @ basis.T
        beta = alpha * torch.tanh(0.5 * entropy) * (1 - part.norm(dim=-1) / h.norm(dim=-1))
        expected = (h - beta.unsqueeze(-1) * part) @ weight.T
        torch.testing.assert_close(found.double().cpu(), expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


def test_without_exact_the_plain_logits_stay_rounded(half, half_prior, picture):
    logits, states = forwards(half, picture, mgap.MGAP(half_prior, alpha=1e-20, exact=False))
    for found, h in zip(logits, states, strict=True):
        with torch.no_grad():
            own = half.backbone.head_module(h)
        assert torch.equal(found.to(own.dtype), own)
    with pytest.raises(SettingError, match="exact"):
        mgap.MGAP.of(prior=half_prior, exact="no")
    with pytest.raises(SettingError, match="exact"):
        attach(half, mgap.MGAP(half_prior, exact="no"))


@pytest.mark.usefixtures("uncompiled_graphs")
@pytest.mark.parametrize(("name", "mode"), [("mgap", "static_cache"), ("vcd", "static_cache"), ("mgap", "compile")])
def test_fast_modes_take_the_same_head(half, half_prior, picture, name, mode):
    with half.using(build(name, half_prior)):
        assert exact_products(half, picture, mode)


@pytest.mark.long
@pytest.mark.usefixtures("uncompiled_graphs")
def test_compiled_layers_take_the_same_head(checkpoints, picture):
    half = mgap.load(str(checkpoints["llava"]), dtype="bfloat16")
    with half.using(mgap.DeCo()):
        assert exact_products(half, picture, "compile")


def exact_products(model, picture, mode):
    """The rows of the head's weight in each exact product of an answer, which is as long as without the mode."""
    products = []

    def product(weight, bias, h):
        products.append(len(weight))
        return exact_product(weight, bias, h)

    greedy = model.answer(picture, QUESTION, max_new_tokens=6).token_ids
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mgap.backbones.exact_product.exact_product", product)
        quick = model.answer(picture, QUESTION, max_new_tokens=6, **{mode: True}).token_ids
    assert len(quick) == len(greedy)
    return products


def test_the_last_method_that_leaves_takes_the_exact_head_along(half, half_prior):
    head = half.backbone.head_module
    for first, last in ((0, 1), (1, 0)):
        stack = [attach(half, mgap.VCD()), attach(half, mgap.MGAP(half_prior))]
        assert is_exact(head)
        stack[first].detach()
        assert is_exact(head)
        stack[last].detach()
        assert not is_exact(head)
        assert "forward" not in head.__dict__
    with attach(half, mgap.MGAP(half_prior, alpha=0.0)):
        assert not is_exact(head)
    with attach(half, mgap.MGAP(half_prior, exact=False)):
        assert not is_exact(head)


def test_a_model_in_float32_is_left_alone(model, prior):
    with attach(model, mgap.MGAP(prior)):
        assert not is_exact(model.backbone.head_module)


def test_what_was_set_on_the_head_before_is_set_again():
    head, h = nn.Linear(8, 5, dtype=torch.bfloat16), torch.randn(2, 8).bfloat16()
    head._old_forward = own = head.forward  # as accelerate does, around which it puts its own
    head.forward = lambda state: head._old_forward(state)
    make_exact(head)
    make_exact(head)
    with torch.no_grad():
        assert head(h).dtype == torch.float32
        torch.testing.assert_close(head(h), h.float() @ head.weight.float().T + head.bias.float())
    make_own(head)
    make_own(head)
    assert head._old_forward is own
    assert head(h).dtype == torch.bfloat16


def test_heads_that_cannot_be_exact_say_why():
    class Packed(nn.Linear):
        pass

    head = Packed(8, 5, dtype=torch.bfloat16)
    make_exact(head)
    assert not is_exact(head)
    assert why_rounded(head) == "its weights are Packed"
    assert why_rounded(nn.Linear(8, 5)) == ""


def test_a_head_whose_weights_are_elsewhere_is_read_by_its_own_forward():
    """As accelerate offloads it: the weights come for the length of the forward."""
    inner, head = (
        nn.Linear(8, 5, dtype=torch.bfloat16).requires_grad_(False),
        nn.Linear(8, 5, device="meta", dtype=torch.bfloat16),
    )
    head.forward = inner.forward
    make_exact(head)
    assert not is_exact(head)
    assert why_rounded(head) == "its weights are offloaded"
    h = torch.randn(2, 8).bfloat16()
    measured = Head.measure(head, h)
    assert torch.equal(measured.product(h), inner(h).float())
    assert torch.equal(measured.own_product(h), inner(h))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_packed", [False, True])
def test_the_table_is_not_rounded(dtype, is_packed):
    class Packed(nn.Module):  # weights that only the module can multiply, with an output in float32
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, h):
            return h.float() @ self.inner.weight.float().T + self.inner.bias.float()

    inner = nn.Linear(64, 300, dtype=dtype).requires_grad_(False)
    head = Head.measure(Packed(inner) if is_packed else inner, torch.randn(1, 64).to(dtype))
    basis = torch.linalg.qr(torch.randn(64, 5, generator=torch.Generator().manual_seed(0)))[0]
    expected = inner.weight.double() @ basis.double()
    error = (head.table(basis).T.double() - expected).norm() / expected.norm()
    assert error < 2e-6  # through the rounding head: 0.0017 in bfloat16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_three_parts_of_16_bits_are_one_of_32(dtype):
    h = torch.randn(50, 33, generator=torch.Generator().manual_seed(0)) * 7
    parts = split_states(h, dtype)
    assert parts.dtype == dtype
    torch.testing.assert_close(parts.double().sum(0), h.double(), rtol=2e-7, atol=1e-7)


def test_gradients_flow_through_the_exact_product():
    head, h = nn.Linear(8, 5, dtype=torch.bfloat16), torch.randn(2, 8, dtype=torch.bfloat16, requires_grad=True)
    exact_product(head.weight, head.bias, h).sum().backward()
    assert h.grad is not None
    assert head.weight.grad is not None
