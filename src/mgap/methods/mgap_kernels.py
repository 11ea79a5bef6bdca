"""MGAP's step as three Triton kernels, launched by `mgap_fused.py`. Imported late, so that triton is optional.

`measure` reads states and logits, `weigh` works out each row's beta, `correct` writes the logits of the cut state. They meet
in a scratch [rows, LEAD + K + 3 SPLITS]:

    entropy, cosine, gamma, delta, beta (by `weigh`)   |h|^2   c = V'h [K]   top, total, moment [SPLITS each]

For a slice of the vocabulary with logits l, top = max l, total = sum exp(l - top), moment = sum (l - top) exp(l - top). Slices
can be merged in any order, and entropy = ln(total) - moment / total. A masked token (-inf) counts as LOW, which has weight 0
beside any other token and gives no nan, unlike -inf.

Triton reads annotations, so this file has them for compile-time constants only.
"""

import triton
import triton.language as tl

LEAD = tl.constexpr(6)  # the five numbers of the gate, and |h|^2
LOW = tl.constexpr(-1e38)


@triton.jit(do_not_specialize=["span", "slices"])
def measure(
    h,  # [rows, d], any float
    logits,  # [rows, vocab], any float: the head's own output
    basis,  # [K, d] float32
    scratch,
    h_stride,
    logits_stride,
    d,
    vocab,
    span,  # blocks per slice
    slices,
    scale,
    cap,
    K: tl.constexpr,
    SPLITS: tl.constexpr,  # space for slices in the scratch
    SCALED: tl.constexpr,
    CAPPED: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Programs (row, part): a part is one slice of the vocabulary or, after those, one direction: the short ones come last."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    into = scratch + row * (LEAD + K + 3 * SPLITS)
    if part >= slices:
        direction = part - slices
        dot = tl.full([WIDE], 0.0, tl.float32)
        square = tl.full([WIDE], 0.0, tl.float32)
        for start in range(0, d, WIDE):
            i = start + tl.arange(0, WIDE)
            x = tl.load(h + row * h_stride + i, mask=i < d, other=0.0).to(tl.float32)
            dot += x * tl.load(basis + direction * d + i, mask=i < d, other=0.0)
            square += x * x
        tl.store(into + LEAD + direction, tl.sum(dot, 0))
        if direction == 0:
            tl.store(into + LEAD - 1, tl.sum(square, 0))
    else:
        top = tl.full([BLOCK], LOW, tl.float32)
        total = tl.full([BLOCK], 0.0, tl.float32)
        moment = tl.full([BLOCK], 0.0, tl.float32)
        first = part * span
        for block in range(first, first + span):
            i = block * BLOCK + tl.arange(0, BLOCK)
            x = tl.load(logits + row * logits_stride + i, mask=i < vocab, other=0.0).to(tl.float32)
            if SCALED:
                x = x * scale
            if CAPPED:
                e = tl.exp(-2.0 * tl.abs(x / cap))
                x = tl.where(x < 0, -cap, cap) * ((1.0 - e) / (1.0 + e))  # cap * tanh(x / cap)
            x = tl.where((i >= vocab) | (x < LOW), LOW, x)
            rise = x - top
            e = tl.exp(-tl.abs(rise))  # the factor for the new logit or for all before it, whichever is not the top
            shift = rise * e
            higher = rise > 0
            moment = tl.where(higher, moment * e - shift * total, moment + shift)
            total = tl.where(higher, total * e + 1.0, total + e)
            top = tl.where(higher, x, top)
        most = tl.max(top, 0)
        weight = tl.exp(top - most)
        into += LEAD + K + part
        tl.store(into, most)
        tl.store(into + SPLITS, tl.sum(total * weight, 0))
        tl.store(into + 2 * SPLITS, tl.sum(moment * weight + ((top - most) * weight) * total, 0))


@triton.jit(do_not_specialize=["slices"])
def weigh(
    scratch,
    alphas,  # [rows] float32, read if OWN
    slices,
    alpha,
    lam,
    slope,  # 1 / (1 - threshold)
    K: tl.constexpr,
    ROOM: tl.constexpr,  # K, rounded up to a power of two
    SPLITS: tl.constexpr,
    GATE: tl.constexpr,
    PROTECT: tl.constexpr,
    OWN: tl.constexpr,  # every row has its own strength, instead of alpha
):
    """Programs (row): merges the slices, and works out beta. Done here once, it is not done by every program of `correct`."""
    row = tl.program_id(0).to(tl.int64)
    into = scratch + row * (LEAD + K + 3 * SPLITS)
    every = tl.arange(0, ROOM)
    held = tl.load(into + LEAD + every, mask=every < K, other=0.0)
    held = tl.sqrt(tl.sum(held * held, 0))
    norm = tl.sqrt(tl.load(into + LEAD - 1))
    split = tl.arange(0, SPLITS)
    here = into + LEAD + K + split
    top = tl.load(here, mask=split < slices, other=LOW)
    total = tl.load(here + SPLITS, mask=split < slices, other=0.0)
    moment = tl.load(here + 2 * SPLITS, mask=split < slices, other=0.0)
    below = top - tl.max(top, 0)
    weight = tl.exp(below)
    moment = tl.sum(moment * weight + (below * weight) * total, 0)
    total = tl.sum(total * weight, 0)
    entropy = tl.log(total) - moment / total
    entropy = tl.where(entropy < 0, 0.0, entropy)  # keeps a nan

    cosine = tl.where(norm > 0, held / tl.where(norm > 0, norm, 1.0), 0.0)
    cosine = tl.where(cosine > 1, 1.0, cosine)
    gamma = 1.0
    if GATE:
        e = tl.exp(-2.0 * lam * entropy)
        gamma = (1.0 - e) / (1.0 + e)  # tanh(lam * entropy)
    delta = 1.0
    if PROTECT:
        delta = (1.0 - cosine) * slope
        delta = tl.where(delta > 1, 1.0, delta)
    if OWN:
        alpha = tl.load(alphas + row)
    tl.store(into, entropy)
    tl.store(into + 1, cosine)
    tl.store(into + 2, gamma)
    tl.store(into + 3, delta)
    tl.store(into + 4, alpha * gamma * delta)


@triton.jit(do_not_specialize=["rows"])
def correct(
    logits,  # [rows, vocab], any float
    out,  # [rows, vocab] float32
    table,  # [K, vocab] float32: W V
    scratch,
    logits_stride,
    rows,
    vocab,
    K: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,  # directions whose reads are pending together
):
    """Programs (ROWS rows and BLOCK tokens, one row group after the other): l - beta (W V) c."""
    blocks = tl.cdiv(vocab, BLOCK)
    token = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    row = (tl.program_id(0) // blocks) * ROWS + tl.arange(0, ROWS)
    mine, inside = row < rows, token < vocab
    place, tile = row.to(tl.int64), mine[:, None] & inside[None, :]
    raw = tl.load(logits + place[:, None] * logits_stride + token[None, :], mask=tile, other=0.0)  # [ROWS, BLOCK]
    base = scratch + place * (LEAD + K + 3 * SPLITS)  # [ROWS]
    beta = tl.load(base + 4, mask=mine, other=0.0)
    away = tl.full([ROWS, BLOCK], 0.0, tl.float32)
    for start in range(0, K, STEP):
        for j in tl.static_range(STEP):
            k = start + j
            w = tl.load(table + k * vocab + token, mask=inside & (k < K), other=0.0)
            c = tl.load(base + LEAD + k, mask=mine & (k < K), other=0.0)
            away += (beta * c)[:, None] * w[None, :]
    cut = raw.to(tl.float32) - away
    tl.store(out + place[:, None] * vocab + token[None, :], cut, mask=tile)
