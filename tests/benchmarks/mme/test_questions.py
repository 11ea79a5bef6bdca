"""MME's published files, and everything that can be wrong with a file of two questions a picture."""

import pytest

from mgap.benchmarks.mme.questions import ALL, TASK_SETS, choose_tasks, find_questions, read_mme, read_questions
from mgap.errors import BenchmarkError, SettingError
from tests.benchmarks.mme.made import draw_mme, write_questions


def test_the_published_files_are_read(shared):
    files = find_questions(shared / "data" / "mme", ALL)
    read = {task: read_questions(path, task) for task, path in files.items()}
    questions = [question for task in read.values() for question in task]
    assert (len(questions), sum(question.label == "yes" for question in questions)) == (2374, 1187)
    assert len({question.id for question in questions}) == 2374
    counted = {name: sum(len(read[task]) for task in tasks) for name, tasks in TASK_SETS.items()}
    assert counted == {"hallucination": 240, "perception": 2114, "cognition": 260, "all": 2374}
    assert [(q.id, q.label) for q in read["count"][:2]] == [
        ("count/000000006040.jpg/1", "yes"), ("count/000000006040.jpg/2", "no"),
    ]  # fmt: skip


@pytest.mark.parametrize("place", ["", "eval_tool/Your_Results", "Your_Results"])
def test_files_are_found_where_the_archive_has_them(tmp_path, place):
    write_questions(tmp_path / place, ["color", "existence"])
    assert list(find_questions(tmp_path, ["existence", "color"])) == ["existence", "color"]
    with pytest.raises(BenchmarkError, match=r"count\.txt: no such file; take all of MME's files from one place"):
        find_questions(tmp_path, ["existence", "count"])
    with pytest.raises(
        BenchmarkError, match=r"no OCR\.txt in it; name a folder with MME's files, or fetch them: mgap fetch mme"
    ):
        find_questions(tmp_path, ["OCR"])


def test_tasks_are_chosen_by_name_and_by_set_in_the_published_order():
    assert choose_tasks("hallucination") == ("existence", "count", "position", "color")
    assert choose_tasks("OCR,hallucination,color") == ("existence", "count", "position", "color", "OCR")
    assert choose_tasks("all") == ALL == choose_tasks("cognition,perception")
    with pytest.raises(
        SettingError, match="unknown task 'colour' of MME: choose from hallucination, perception, cognition, all"
    ):
        choose_tasks("count,colour")


def test_a_benchmark_about_pictures_in_either_place(tmp_path):
    draw_mme(tmp_path)
    found = read_mme(tmp_path, tmp_path)
    assert (found.name, found.task, len(found.samples)) == ("mme hallucination", "mme", 16)
    by_group = {sample.group: sample for sample in found.samples}
    assert by_group["existence"].image == "existence/1.png"
    assert by_group["count"].image == "count/images/1.png"
    assert by_group["count"].id == "count/1.png/2"
    assert all(found.picture(sample.image).is_file() for sample in found.samples)
    assert len(found.sources) == 4


def test_every_prompt_takes_the_ending_out_or_leaves_it(tmp_path):
    draw_mme(tmp_path)
    (tmp_path / "color.txt").write_text(
        "0.png\tRed?  Please answer yes or no.\tYes\n0.png\tBlue? Please answer yes or no.\tNo\n"
    )
    asked = {
        prompt: [sample.prompt for sample in read_mme(tmp_path, tmp_path, tasks="color", prompt=prompt).samples]
        for prompt in ("mme", "original", "llava", "vcd", "ritual", "lmms_eval")
    }
    whole = ["Red?  Please answer yes or no.", "Blue? Please answer yes or no."]
    short = [f"{word}?\nAnswer the question using a single word or phrase." for word in ("Red", "Blue")]
    assert asked == {"mme": whole, "original": whole, **dict.fromkeys(("llava", "vcd", "ritual", "lmms_eval"), short)}
    with pytest.raises(SettingError, match="unknown prompt 'question' of MME: choose from mme, original, llava"):
        read_mme(tmp_path, tmp_path, prompt="question")


def test_a_missing_picture_is_refused_or_left_out_with_both_questions(tmp_path):
    draw_mme(tmp_path)
    (tmp_path / "count" / "images" / "1.png").unlink()
    with pytest.raises(BenchmarkError, match=r"1 of 8 pictures are missing, first count/1\.png"):
        read_mme(tmp_path, tmp_path)
    found = read_mme(tmp_path, tmp_path, missing="skip")
    assert len(found.samples) == 14
    assert "2 of 16 samples are left out" in found.notes[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty; a line has picture, question, label, separated by tabs"),
        ("a.jpg\tA?\tYes\n", r"1 of 1 pictures have not exactly two questions, first 'a\.jpg' with 1"),
        ("a.jpg\tA?\tYes\na.jpg\tB?\tNo\na.jpg\tC?\tNo\n", r"first 'a\.jpg' with 3"),
        ("a.jpg\tA?\tYes\na.jpg\tB?\n", "line 2: 2 columns, not 3"),
        ("a.jpg\tA?\tYes\n\na.jpg\tB?\tNo\n", "line 2: 1 columns, not 3"),
        ("a.jpg\tA?\tYes\na.jpg\tB?\tperhaps\n", "line 2: the label is 'perhaps'; write Yes or No"),
    ],
)
def test_a_broken_file_is_refused_in_one_sentence(tmp_path, text, message):
    (tmp_path / "color.txt").write_text(text)
    with pytest.raises(BenchmarkError, match=message):
        read_questions(tmp_path / "color.txt", "color")


def test_windows_line_ends_and_a_byte_order_mark_do_no_harm(tmp_path):
    (tmp_path / "color.txt").write_bytes(b"\xef\xbb\xbfa.jpg\tA?\tYes\r\na.jpg\tB?\tNo\r\n")
    questions = read_questions(tmp_path / "color.txt", "color")
    assert [(q.id, q.label) for q in questions] == [("color/a.jpg/1", "yes"), ("color/a.jpg/2", "no")]
