"""What is taken along gives the same answer again."""

import base64
import io
import json
import re
import xml.etree.ElementTree as ET
from contextlib import redirect_stdout
from dataclasses import replace

import pytest

from mgap.inspector.answer_exports import links, to_json, to_python
from mgap.inspector.answering import Knobs
from mgap.inspector.scene_json import scene_of
from mgap.inspector.views import curves_plot, spots_plot
from mgap.run.method_plans import VANILLA


@pytest.fixture(scope="module")
def asked(ask, office):
    return ask(office, [VANILLA, "mgap", "vcd"], Knobs(alpha=1.0, lam=1.5, rank=3), {"vcd": {"alpha": 0.5}})


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_python_lines_print_this_very_answer(asked, place):
    column = asked.columns[place]
    heard = io.StringIO()
    with redirect_stdout(heard):
        exec(compile(to_python(asked, column), "lines", "exec"), {})
    assert heard.getvalue().strip() == column.text


def test_of_a_dropped_picture_the_lines_name_the_file_alone(asked):
    lines = to_python(replace(asked, source="cat.png"), asked.columns[1])
    assert "image = 'cat.png'" in lines
    compile(lines, "lines", "exec")


def test_the_trace_is_json_with_everything_that_was_shown(asked, office):
    told = json.loads(json.dumps(to_json(asked)))
    assert scene_of(told["picture"]["scene"]) == office.scene
    assert [answer["text"] for answer in told["answers"]] == [column.text for column in asked.columns]
    first = told["answers"][1]["tokens"][0]
    m = asked.columns[1].tokens[0]
    assert first["values"] == m.token.step.values
    assert first["decoded_from"]["distance"] == m.after.distance
    assert len(first["before"]) == len(first["after"]) == 5
    assert told["answers"][1]["settings"] == {"alpha": 1.0, "lam": 1.5, "rank": 3, "gate": True, "protect": True}


def test_the_links_hold_their_files(asked):
    html = links(asked, {"state": spots_plot(asked, (1, 0)), "sweep": curves_plot(asked, (1, 0), ["The"]), "none": None})
    files = dict(re.findall(r'download="([^"]+)" href="data:[^;]+;base64,([^"]+)"', html))
    assert list(files) == ["mgap-inspect.json", "mgap-inspect-state.svg", "mgap-inspect-sweep.svg"]
    assert json.loads(base64.b64decode(files["mgap-inspect.json"]))["question"] == asked.question
    for name in list(files)[1:]:
        assert ET.fromstring(base64.b64decode(files[name])).tag.endswith("svg")


def test_before_anything_was_asked_there_is_nothing_to_take_along():
    assert links(None, {}) == ""
