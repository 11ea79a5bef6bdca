"""Pictures beside the examples of a report: the page holds them, small and few, and says in words which it lacks."""

import base64
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from mgap.backbones.prepared_pictures import picture_digest
from mgap.pocket.samples import pope_samples
from mgap.reports.examples import PICTURES, SIDE, changes, with_pictures
from mgap.reports.report import report_files
from mgap.reports.scores import score
from mgap.run.records import Run
from tests.reports.html import check_page
from tests.reports.runs import answers, questions, write_run

OWN = {"name": "own", "task": "yesno", "lexicon": {}, "sources": {}, "notes": []}
SAMPLES = questions(pictures=6, groups=("random",))


def pictures_in(files):
    """The pictures that the page holds, opened."""
    found = re.findall(r'src="data:image/(?:png|jpeg);base64,([^"]+)"', files["report.html"])
    return [Image.open(io.BytesIO(base64.b64decode(data))) for data in found]


@pytest.fixture
def photos(tmp_path):
    """A folder of noisy photographs, and their digests by name."""
    folder, digests = tmp_path / "photos", {}
    folder.mkdir()
    for n in range(6):
        pixels = np.random.default_rng(n).integers(0, 255, (300, 400, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{n}.png")
        digests[f"{n}.png"] = picture_digest(Image.fromarray(pixels))
    return folder, digests


def own_run(tmp_path, photos):
    folder, digests = photos
    wrong = [sample.id for sample in SAMPLES]
    plain = [replace(record, image=digests[s.image]) for s, record in zip(SAMPLES, answers(SAMPLES, wrong), strict=True)]
    answered = {"Vanilla": plain, "Ours": answers(SAMPLES)}
    return Run.load(write_run(tmp_path / "run", SAMPLES, answered, benchmark=OWN, images=str(folder)))


def test_the_page_holds_the_pictures_of_its_examples_small(tmp_path, photos):
    files = report_files([score(own_run(tmp_path, photos))])
    page, shown = check_page(files["report.html"]), pictures_in(files)
    assert len(shown) == 3
    assert {picture.size for picture in shown} == {(SIDE, 120)}
    assert {picture.format for picture in shown} == {"JPEG"}, "PNG would be larger"
    assert {image["alt"] for image in page.all("img")} == {"The picture 0.png", "The picture 2.png", "The picture 4.png"}
    assert "No picture" not in page.text()


def test_a_picture_that_is_gone_or_another_one_is_told_in_words(tmp_path, photos):
    run, (folder, _) = own_run(tmp_path, photos), photos
    (folder / "0.png").unlink()
    Image.new("RGB", (400, 300), "red").save(folder / "2.png")
    files = report_files([score(run)])
    assert len(pictures_in(files)) == 1
    text = check_page(files["report.html"]).text()
    assert "0.png: no such image file" in text
    assert "2.png: is another picture than the one that the run saw" in text


def test_a_run_that_names_no_folder_of_pictures_says_so(tmp_path):
    answered = {"Vanilla": answers(SAMPLES, ["random/0"]), "Ours": answers(SAMPLES)}
    folder = write_run(tmp_path / "run", SAMPLES, answered, benchmark=OWN)
    text = check_page(report_files([score(Run.load(folder))])["report.html"]).text()
    assert "No picture: 0.png: the run does not tell in which folder its pictures are" in text


def test_drawn_pictures_are_drawn_again_as_the_run_saw_them(tmp_path):
    benchmark = pope_samples(["random"], 4, held_out=True)
    samples, drawn = benchmark.samples, {s.image: benchmark.picture(s.image) for s in benchmark.samples}
    wrong = [samples[0].id, samples[-1].id]
    plain = [replace(r, image=picture_digest(drawn[s.image])) for s, r in zip(samples, answers(samples, wrong), strict=True)]
    run = Run.load(write_run(tmp_path / "run", samples, {"Vanilla": plain, "Ours": answers(samples)}))
    (changed,) = with_pictures(score(run), changes(score(run)))
    assert [example.unseen for example in changed.examples] == ["", ""]
    other = pope_samples(["random"], 4, held_out=False).picture(samples[0].image)
    assert picture_digest(other) != picture_digest(drawn[samples[0].image]), "the world has two styles"
    shown = Image.open(io.BytesIO(base64.b64decode(changed.examples[0].thumbnail.source.partition(",")[2]))).convert("RGB")
    small = drawn[samples[0].image].copy()
    small.thumbnail((SIDE, SIDE))
    assert np.abs(np.asarray(shown, int) - np.asarray(small, int)).mean() < 8, "but for JPEG's rounding"


def test_no_more_pictures_than_a_page_can_bear(tmp_path, photos):
    scores = score(own_run(tmp_path, photos))
    (changed,) = with_pictures(scores, changes(scores), most=2)
    assert [example.thumbnail is None for example in changed.examples] == [False, False, True]
    assert changed.examples[2].unseen == "only the first 2 examples have pictures"
    assert PICTURES * SIDE**2 * 3 < 2**21, "bytes, before any compression"
