"""Banks on disk: part by part within bounded memory, taken up after an interruption, and checked."""

import json
import re
import sys
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mgap
from mgap.errors import BackboneMismatch, CorruptFile, NonFiniteStates, PromptError, SettingError
from mgap.priors import bank_files
from mgap.priors.bank import Bank
from mgap.priors.bank_files import Chunk

PROMPTS = [f"Is there {what} in the image?" for what in ("a dog", "a cat", "a car", "food", "snow", "a bus", "water")]

pytestmark = pytest.mark.filterwarnings("ignore:.* names no model")  # bare states


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


def drawn(count, width=6, dtype=torch.float32):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(0)).to(dtype)


def chunks_of(states, size, rows=None):
    rows = torch.arange(len(states), dtype=torch.int32) if rows is None else rows
    for start in range(0, len(states), size):
        place = slice(start, start + size)
        yield Chunk(states[place], rows[place], torch.zeros_like(rows[place]), 7 + rows[place])


def files(folder):
    return sorted(folder.glob("bank-*.safetensors"))


def breaking(values, at):
    for place, value in enumerate(values):
        if place == at:
            raise RuntimeError("the disk with the pictures is gone")
        yield value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_bank_of_several_parts_comes_back_as_it_was(dtype, tmp_path):
    states = drawn(25, dtype=dtype)
    bank = Bank.of(states, rows=torch.arange(25) // 3, steps=torch.arange(25) % 3, tokens=torch.arange(25) + 100)
    bank.save(tmp_path, per_part=10)
    again = Bank.load(tmp_path)
    assert [len(part) for part in again.parts] == [10, 10, 5]
    assert (len(again), again.width, again.parts[0].dtype) == (25, 6, dtype)
    assert torch.equal(torch.cat(again.parts), states)
    assert torch.equal(again.states, states.float())
    for name in ("rows", "steps", "tokens"):
        assert torch.equal(getattr(again, name), getattr(bank, name))
        assert getattr(again, name).dtype == torch.int32
    again.save(tmp_path, per_part=25)  # over itself
    assert torch.equal(Bank.load(tmp_path).parts[0], states)
    assert len(files(tmp_path)) == 1


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 10))
def test_however_states_come_they_are_all_there_in_order_and_no_part_is_too_large(sizes, per_part):
    states = drawn(sum(sizes))
    rows = torch.arange(len(sizes), dtype=torch.int32).repeat_interleave(torch.tensor(sizes))
    pieces = zip(states.split(sizes), rows.split(sizes), strict=True)
    bank = Bank.gather((Chunk(piece, row, row, row) for piece, row in pieces), per_part=per_part)
    assert torch.equal(bank.states, states)
    assert torch.equal(bank.rows, rows)
    assert max(len(part) for part in bank.parts) <= per_part


def test_a_million_states_pass_through_the_memory_of_one_part(tmp_path):
    size, per_part, alive, most = 1000, 50_000, weakref.WeakSet(), []

    def chunks():
        for start in range(0, 1_000_000, size):
            states = torch.full((size, 4), start / 1e6, dtype=torch.bfloat16)
            alive.add(states)
            most.append(len(alive) * size)
            rows = torch.arange(start, start + size, dtype=torch.int32)
            yield Chunk(states, rows, rows, rows)

    bank = Bank.gather(chunks(), folder=tmp_path, per_part=per_part)
    assert max(most) <= per_part + 2 * size  # the one that is made, and the one whose place is sought
    assert len(bank) == 1_000_000
    assert len(bank.parts) == 20
    assert torch.equal(bank.rows, torch.arange(1_000_000, dtype=torch.int32))
    assert float(bank.parts[-1][-1, 0]) == pytest.approx(0.999, abs=0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_opening_maps_the_files_instead_of_reading_them(tmp_path):
    Bank.of(drawn(40)).save(tmp_path, per_part=10)
    bank = Bank.load(tmp_path)
    mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
    assert {Path(words[-1]) for words in mapped} == set(files(tmp_path))
    spans = [[int(place, 16) for place in words[0].split("-")] for words in mapped]
    for part in bank.parts:
        assert any(start <= part.data_ptr() < stop for start, stop in spans)


def test_checksums_of_large_banks_are_computed_when_asked_for(tmp_path, monkeypatch):
    Bank.of(drawn(40), tokens=torch.arange(40)).save(tmp_path, per_part=10)
    damaged = files(tmp_path)[1]
    data = bytearray(damaged.read_bytes())
    data[-4] ^= 1  # another token, and a possible one
    damaged.write_bytes(data)
    with pytest.raises(CorruptFile, match=f"{damaged.name}: damaged"):
        Bank.load(tmp_path)
    assert len(Bank.load(tmp_path, check=False)) == 40
    monkeypatch.setattr(bank_files, "CHECKED_BYTES", 1000)
    assert len(Bank.load(tmp_path)) == 40
    with pytest.raises(CorruptFile, match=f"{damaged.name}: damaged"):
        Bank.load(tmp_path, check=True)


def test_parts_that_are_cut_missing_or_of_another_shape_are_refused_without_reading_them(tmp_path):
    Bank.of(drawn(20)).save(tmp_path, per_part=10)
    index, (one, other) = json.loads((tmp_path / "bank.json").read_text()), files(tmp_path)

    def write(**changes):
        (tmp_path / "bank.json").write_text(json.dumps({**index, **changes}))

    for changes, why in (
        ({"width": 7}, "not .10, 7. of float32"),
        ({"dtype": "bfloat16"}, "of bfloat16"),
        ({"parts": [{**index["parts"][0], "states": 11}], "count": 11}, "not .11, 6."),
        ({"parts": [{**index["parts"][0], "file": "../bank-0123456789ab.safetensors"}], "count": 10}, "not the name of a part"),
        ({"parts": [*index["parts"], index["parts"][0]]}, "its parts do not hold its 20 states"),
        ({"parts": [{"file": one.name}]}, "not a saved bank"),
        ({"parts": []}, "without states"),
        ({"model": {"name": "x"}}, "not a saved bank"),
        ({"format": 1}, "format 1, .* collect it again"),
        ({"format": 3}, "upgrade mgap"),
    ):
        write(**changes)
        with pytest.raises(CorruptFile, match=why):
            Bank.load(tmp_path, check=False)
    write()
    whole = one.read_bytes()
    one.write_bytes(whole[:-1])
    with pytest.raises(CorruptFile, match=f"{one.name}: has {len(whole) - 1} bytes"):
        Bank.load(tmp_path, check=False)
    one.write_bytes(whole)
    other.unlink()
    with pytest.raises(CorruptFile, match=other.name):
        Bank.load(tmp_path, check=False)
    with pytest.raises(CorruptFile, match="no saved bank"):
        Bank.load(tmp_path / "elsewhere")


@pytest.mark.parametrize("new", [1, 4])
def test_a_collection_that_broke_off_goes_on_where_it_stopped(exact, picture, tmp_path, new):
    def images():
        return (picture.rotate(10 * turn) for turn in range(len(PROMPTS)))

    options = {"batch_size": 2, "max_new_tokens": new, "per_part": 3 * new}
    whole = Bank.collect(exact, images(), PROMPTS, **options)
    with pytest.raises(RuntimeError, match="is gone"):
        Bank.collect(exact, breaking(images(), 5), PROMPTS, folder=tmp_path, **options)
    assert json.loads((tmp_path / "bank-begun.json").read_text())["rows"] == 4
    with pytest.raises(CorruptFile, match="not whole yet"):
        Bank.load(tmp_path)
    seen = []
    bank = Bank.collect(exact, images(), iter(PROMPTS), folder=tmp_path, progress=seen.append, **options)
    assert seen == [6, 7]
    for one, other in ((bank, whole), (Bank.load(tmp_path, check=True), whole)):
        assert torch.equal(one.states, other.states)
        assert torch.equal(one.rows, other.rows)
        assert torch.equal(one.steps, other.steps)
        assert torch.equal(one.tokens, other.tokens)
        assert (one.identity, one.origin) == (other.identity, other.origin)
    assert {path.name for path in tmp_path.iterdir()} == {"bank.json", *(path.name for path in files(tmp_path))}


def test_after_a_kill_the_parts_that_were_whole_are_kept(tmp_path):
    states = drawn(20)
    shelf = bank_files.BankFolderWriter(tmp_path, None, {}, per_part=4, resume=True)
    for chunk in list(chunks_of(states, 2))[:7]:
        shelf.add(chunk)  # and then nothing: two rows are held and in no part
    (tmp_path / "bank-0123456789ab.safetensors").write_bytes(b"a part that no index names yet")
    (tmp_path / ".bank-0123456789ab.safetensors-x.part").write_bytes(b"half a part")
    kept = {path.name: path.stat().st_mtime_ns for path in files(tmp_path)}
    assert json.loads((tmp_path / "bank-begun.json").read_text())["rows"] == 12
    bank = Bank.gather(chunks_of(states, 5), folder=tmp_path, per_part=4)  # other chunks: rows that are there are passed over
    assert torch.equal(bank.states, states)
    assert torch.equal(bank.tokens, 7 + torch.arange(20, dtype=torch.int32))
    now = {path.name: path.stat().st_mtime_ns for path in files(tmp_path)}
    assert [name for name in kept if name not in now] == ["bank-0123456789ab.safetensors"]
    assert all(now[name] == kept[name] for name in kept if name in now)
    assert {path.name for path in tmp_path.iterdir()} == {"bank.json", *now}


def test_a_whole_bank_is_not_collected_again_and_grows_by_the_rows_after_it(exact, picture, tmp_path):
    Bank.collect(exact, [picture] * 4, PROMPTS[:4], folder=tmp_path, batch_size=2)
    seen = []
    again = Bank.collect(exact, [picture] * 4, PROMPTS[:4], folder=tmp_path, batch_size=2, progress=seen.append)
    assert not seen
    assert len(again) == 4
    more = Bank.collect(exact, [picture] * 7, PROMPTS, folder=tmp_path, batch_size=2, progress=seen.append)
    assert seen == [6, 7]
    assert torch.equal(more.states, Bank.collect(exact, [picture] * 7, PROMPTS, batch_size=2).states)
    with pytest.raises(PromptError, match="more than the 5 given"):
        Bank.collect(exact, [picture] * 5, PROMPTS[:5], folder=tmp_path)


def test_what_differs_from_the_collection_that_broke_off_is_named(exact, checkpoints, picture, tmp_path):
    images = [picture] * len(PROMPTS)
    with pytest.raises(RuntimeError):
        Bank.collect(exact, breaking(images, 4), PROMPTS, folder=tmp_path, batch_size=2, origin={"task": "dogs"})

    def go_on(model=exact, images=images, prompts=PROMPTS, **options):
        Bank.collect(model, images, prompts, folder=tmp_path, **{"origin": {"task": "dogs"}, **options})

    with pytest.raises(PromptError, match="other pictures or prompts"):
        go_on(prompts=["What?", *PROMPTS[1:]])
    with pytest.raises(PromptError, match="other pictures or prompts"):
        go_on(images=[picture.rotate(90), *images[1:]])
    with pytest.raises(SettingError, match="max_new_tokens = 1, not 3"):
        go_on(max_new_tokens=3)
    with pytest.raises(SettingError, match="task = 'dogs', not None"):
        go_on(origin=None)
    folder = exact.backbone.name
    with pytest.raises(SettingError, match="dtype = 'float32', not 'bfloat16'"):
        go_on(mgap.load(folder, dtype=torch.bfloat16))
    with pytest.raises(BackboneMismatch, match=r"the bank in .* was made with"):
        go_on(next(mgap.load(str(other)) for other in checkpoints.values() if str(other) != folder))
    with pytest.raises(BackboneMismatch, match=re.escape(f"states of {folder}")):
        Bank.gather(chunks_of(drawn(4), 2), folder=tmp_path)
    go_on()
    assert len(Bank.load(tmp_path)) == len(PROMPTS)


def test_a_picture_is_known_by_its_name_wherever_it_lies(exact, picture, tmp_path):
    places = [tmp_path / "here", tmp_path / "there"]
    for place in places:
        place.mkdir()
        picture.save(place / "street.png")
    here, there = (Bank.collect(exact, [place / "street.png"], ["What?"]) for place in places)
    assert here.origin == there.origin
    assert here.origin != Bank.collect(exact, [None], ["What?"]).origin


def test_states_that_are_no_numbers_end_a_collection_that_keeps_those_before(tmp_path):
    states = drawn(8)
    broken = states.clone()
    broken[5, 2] = torch.nan
    with pytest.raises(NonFiniteStates, match="float32"):
        Bank.gather(chunks_of(broken, 2), folder=tmp_path)
    assert json.loads((tmp_path / "bank-begun.json").read_text())["rows"] == 4
    assert torch.equal(Bank.gather(chunks_of(states, 2), folder=tmp_path).states, states)


def test_chunks_that_do_not_belong_together_are_refused():
    states, rows = drawn(4), torch.tensor([2, 3, 0, 1], dtype=torch.int32)
    with pytest.raises(SettingError, match="row 0 comes when row 3 was there"):
        Bank.gather(chunks_of(states, 2, rows))
    with pytest.raises(SettingError, match="each in one chunk"):
        Bank.gather(chunks_of(states, 2, torch.zeros(4, dtype=torch.int32)))
    first, second = chunks_of(states, 2)
    for other in (second.states[:, :5], second.states.bfloat16()):
        with pytest.raises(SettingError, match="one bank is of one kind"):
            Bank.gather([first, second._replace(states=other)])


def test_a_sample_is_drawn_without_replacement_from_all_parts(tmp_path):
    states = drawn(300)
    Bank.of(states).save(tmp_path, per_part=100)
    bank = Bank.load(tmp_path)
    some = bank.sample(30, seed=1)
    assert len(set(some.rows.tolist())) == 30
    assert some.rows.tolist() == sorted(some.rows.tolist())
    assert torch.equal(some.states, states[some.rows.long()])
    assert len(set((some.rows // 100).tolist())) == 3
    assert torch.equal(bank.sample(30, seed=1).rows, some.rows)
    assert not torch.equal(bank.sample(30, seed=2).rows, some.rows)
    assert some.origin["sample"] == {"count": 30, "of": 300, "seed": 1}
    assert torch.equal(bank.sample(300).states, states)
    for count in (0, 301):
        with pytest.raises(SettingError, match="from 1 to 300"):
            bank.sample(count)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(mgap.MgapError, match="cannot be written"):
        Bank.of(drawn(2)).save(tmp_path / "file" / "bank")
