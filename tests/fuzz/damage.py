"""Valid files, damaged: bytes flipped, cut and inserted, values of other types, keys gone and doubled, odd line ends."""

import copy
import json
import resource
import signal
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

import torch
from hypothesis import settings
from hypothesis import strategies as st

from mgap.errors import MgapError

LONGEST = 3000  # characters of a refusal
HANG = 60  # seconds: whatever takes longer is taken for a hang
ROOM = 3 * 2**30  # bytes that one call may ask for beyond what the process has

NAN, INFINITE = float("nan"), float("inf")
ODD_NUMBERS = (0, -1, 1, 2**31, 2**63, -(2**63), 10**400, -(10**400), 0.5, -0.0, 1e308, NAN, INFINITE, -INFINITE)
ODD_TEXTS = (
    "",
    " ",
    "\0",
    "\ufeff",
    "\r",
    "\u2028",
    "\x85",
    "yes",
    "no",
    "../..",
    "/",
    "~",
    "x" * 300,
    "\ud800",
    "1e999",
    "null",
)
LETTERS = st.characters(exclude_characters="\n")  # a refusal that quotes what was given stays one line
TEXTS = st.one_of(st.sampled_from(ODD_TEXTS), st.text(LETTERS, max_size=12))
SCALARS = st.one_of(st.none(), st.booleans(), st.sampled_from(ODD_NUMBERS), st.integers(), st.floats(), TEXTS)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)


def cases(quick):
    """A test of slow cases: so many of them in `make test`, as many as any other at night."""
    usual = settings.get_profile("mgap").max_examples
    return settings(max_examples=quick) if settings.default.max_examples <= usual else settings()


class HangError(BaseException):
    """Not an Exception: a reader that catches what damaged files raise must not catch this."""


class Refused:
    """Stands for the value where there is none."""

    def __init__(self, error):
        self.error = error

    def __repr__(self):
        return f"Refused({self.error!r})"


def outcome(call, *given, names="", **named):
    """What a call gives, or its refusal: one sentence, which has `names` in it. Any other error goes through."""
    with warnings.catch_warnings(), _bounded():
        warnings.simplefilter("ignore")
        try:
            return call(*given, **named)
        except MgapError as error:
            said = str(error)
            assert said.strip()
            assert "\n" not in said, said
            assert len(said) <= LONGEST, said
            assert names in said, said
            return Refused(error)


@contextmanager
def _bounded():
    """Inside the block, a hang and a claim of far too much memory are errors."""

    def give_up(*_):
        raise HangError(f"no answer within {HANG} s")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, give_up)
    whole, began = signal.setitimer(signal.ITIMER_REAL, HANG)[0], time.monotonic()  # of the whole test's limit, what is left
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, max(whole - (time.monotonic() - began), 0.001) if whole else 0)


@st.composite
def damaged_bytes(draw, data):
    """One to three bytes or pieces of `data` changed, left out, doubled or put in."""
    data = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(len(data) - 1, 0)))
        length = draw(st.sampled_from((1, 1, 2, 8, 64)))
        match draw(st.sampled_from(("flip", "set", "cut", "end", "insert", "double"))):
            case "flip" if data:
                data[place] ^= 1 << draw(st.integers(0, 7))
            case "set" if data:
                data[place] = draw(st.integers(0, 255))
            case "cut":
                del data[place : place + length]
            case "end":
                del data[place:]
            case "insert":
                data[place:place] = draw(st.binary(min_size=1, max_size=8))
            case "double":
                data[place:place] = data[place : place + length]
    return bytes(data)


@st.composite
def damaged_value(draw, value):
    """A copy of plain JSON in which one to three places have something else, something more or nothing."""
    whole = [copy.deepcopy(value)]
    for _ in range(draw(st.integers(1, 3))):
        holder, key = whole, 0
        while isinstance(inner := holder[key], (dict, list)) and inner and draw(st.integers(0, 4)):
            holder, key = inner, draw(st.sampled_from(sorted(inner, key=str) if isinstance(inner, dict) else range(len(inner))))
        match draw(st.sampled_from(("other", "other", "gone", "more", "double"))):
            case "gone" if holder is not whole:
                del holder[key]
            case "more" if isinstance(inner, dict):
                inner[draw(TEXTS)] = draw(VALUES)
            case "more" if isinstance(inner, list):
                inner.append(draw(VALUES))
            case "double" if isinstance(holder, list) and holder is not whole:
                holder.append(copy.deepcopy(holder[key]))
            case _:
                holder[key] = draw(VALUES)
    return whole[0]


def numbers_in(value, path=()):
    """Where plain JSON has numbers: the keys that lead to each."""
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from numbers_in(value[key], (*path, key))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path


NO_NUMBERS = ("1", [1], {}, None, True)


def put(value, path, new):
    """A copy of plain JSON with another value in one place."""
    whole = holder = copy.deepcopy(value)
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = new
    return whole


def all_damaged_numbers(value):
    """Copies of plain JSON in which one number is negative, zero, huge, none at all, or of another type."""
    return (put(value, path, odd) for path in numbers_in(value) for odd in (*ODD_NUMBERS, *NO_NUMBERS))


@st.composite
def damaged_number(draw, value):
    """One of them."""
    path = draw(st.sampled_from(list(numbers_in(value))))
    return put(value, path, draw(st.sampled_from((*ODD_NUMBERS, *NO_NUMBERS))))


@st.composite
def damaged_tensor(draw, tensor):
    """A tensor with NaN or infinite numbers, of another shape or dtype, or with other numbers."""
    match draw(st.sampled_from(("number", "number", "shape", "dtype", "scale"))):
        case "number":
            odd = (NAN, INFINITE, -INFINITE, -1, 0, 1e30) if tensor.is_floating_point() else (-1, 0, -(2**31), 2**31 - 1)
            tensor = tensor.clone()
            tensor.view(-1)[draw(st.integers(0, tensor.numel() - 1))] = draw(st.sampled_from(odd))
            return tensor
        case "shape":
            flat, turned = tensor.flatten(), tensor.transpose(0, -1)
            shapes = (tensor[:0], tensor[:1], tensor[1:], tensor[None], flat, flat[0], turned)
            return draw(st.sampled_from(shapes)).contiguous()
        case "dtype":
            kinds = (torch.int64, torch.int32, torch.bool, torch.float16, torch.float8_e4m3fn)
            return tensor.to(draw(st.sampled_from(kinds)))
    return tensor * draw(st.sampled_from((-1, 0, 2)))


@st.composite
def written(draw, value):
    """Bytes of a JSON file that holds a value, in one of the ways that editors and programs write it."""
    indent, pure = draw(st.sampled_from((None, 1, "\t"))), draw(st.booleans())
    text = json.dumps(value, indent=indent, ensure_ascii=pure)
    return _dressed(draw, text)


@st.composite
def written_lines(draw, values):
    """The same of a file with a value a line."""
    lines = [json.dumps(value, ensure_ascii=draw(st.booleans())) for value in values]
    for _ in range(draw(st.integers(0, 2))):
        lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(("", " ", "\t", "[]", "null", "{"))))
    return _dressed(draw, "\n".join(lines) + draw(st.sampled_from(("\n", "", "\n\n"))))


def _dressed(draw, text):
    ends, mark = draw(st.sampled_from(("\n", "\n", "\r\n", "\r"))), draw(st.sampled_from(("", "", "\ufeff")))
    return (mark + text.replace("\n", ends)).encode("utf-8", "surrogatepass")


DEEP = [b"[" * 5000, b'{"a":' * 3000, b"[" * 500 + b"]" * 500, b'[{"a":1}' + b",[" * 3000, b"{" * 3000, b"- " * 3000]
ANY = st.one_of(st.binary(max_size=200), st.sampled_from(DEEP), st.text(max_size=60).map(lambda text: text.encode()))


def json_files(value):
    """Bytes of a file that should hold this value: as it is, damaged in its values, damaged in its bytes, or anything."""
    whole = json.dumps(value).encode()
    return st.one_of(written(value), damaged_value(value).flatmap(written), damaged_bytes(whole), ANY)


def line_files(values):
    """The same for a value a line."""
    whole = "".join(json.dumps(value) + "\n" for value in values).encode()
    damaged = damaged_value(values).filter(lambda found: isinstance(found, list))
    return st.one_of(written_lines(values), damaged.flatmap(written_lines), damaged_bytes(whole), ANY)


def byte_files(data):
    """The same for a file of other bytes."""
    return st.one_of(st.just(data), damaged_bytes(data), ANY)
