"""The reader and its judges: they find what a page asks for, and a wrong command does not get past them."""

import signal
import textwrap

import pytest
from collecting import Markdown
from executing import Failed, execute
from given import supply
from parsing import NotUnderstood, parse
from reading import Command, PageError, Snippet, parse_page
from smaller import ADDED, added


def read(text):
    return parse_page(textwrap.dedent(text).replace("'''", "```"), "page.md")


def command(text, **more):
    return Command("page.md", 1, text, **more)


def test_blocks_come_in_order_with_their_lines_and_needs():
    page = read("""\
        Some words.

        '''bash
        # first of all
        mgap ls methods   # all of them
        mgap fit --model M \\
          --out priors/m

        '''
        <!-- needs: gpu -->
        '''python
        import mgap
        x = 1
        '''
        """)
    first, second, third = page.blocks
    assert not first.is_shown
    assert (first.line, first.text, first.needs) == (5, "mgap ls methods   # all of them", "")
    assert (second.line, second.simple) == (6, [["mgap", "fit", "--model", "M", "--out", "priors/m"]])
    assert third == Snippet("page.md", 12, "import mgap\nx = 1\n", "gpu")


def test_what_a_page_shows_right_after_a_block_is_what_it_prints():
    page = read("""\
        '''bash
        mgap ls methods
        mgap ls models
        '''
        '''text
        two
        '''
        '''python
        print("three")
        '''
        '''text
        three
        '''
        """)
    first, second, third = page.blocks
    assert [(first.said, first.is_shown), (second.said, second.is_shown)] == [("", True), ("two", True)]
    assert third.said == "three"


def test_bash_says_where_a_command_ends():
    page = read("""\
        '''bash
        cat > a.txt <<'END'
        mgap fit
        END
        A=1 mgap run x.yaml --shard 0/2 &
        mgap run x.yaml --shard 1/2
        for each in a b; do
          mgap score "$each" | head -1
        done
        '''
        """)
    assert [block.line for block in page.blocks] == [2, 5, 7]
    heredoc, pair, loop = page.blocks
    assert heredoc.simple == [["cat", ">", "a.txt"]]
    assert [words[:3] for words in pair.simple] == [["mgap", "run", "x.yaml"]] * 2
    assert ["mgap", "score", "$each"] in loop.simple
    assert ["head", "-1"] in loop.simple


def test_commands_in_running_text_and_tables_are_found():
    page = read("""\
        Type `mgap ls` or `python bench/step.py`, not `mgap_x`; it prints `mgap inspect: http://127.0.0.1:1`.

        | | |
        |---|---|
        | `mgap fit --model M --out DIR` | fits |
        """)
    assert [each.text for each in page.inline] == ["mgap ls", "python bench/step.py", "mgap fit --model M --out DIR"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("'''\nmgap ls\n'''", "tagged ''; tag it with one of"),
        ("'''sh\nmgap ls\n'''", "tagged 'sh'"),
        ("words\n\n    mgap ls\n", "an indented block"),
        ("<!-- needs: luck -->\n'''bash\nmgap ls\n'''", "unknown need 'luck'"),
        ("<!-- needs: gpu -->\n\nwords\n\n'''bash\nmgap ls\n'''", "right before the block"),
        ("<!-- needs: gpu -->\n'''text\nwords\n'''", "which is not run"),
        ("'''bash\nmgap ask a.jpg 'What?\n'''", "bash finds no end"),
        ("'''bash\nmgap ls \\\n'''", "bash finds no end"),
    ],
)
def test_a_page_that_hides_what_it_asks_for_is_refused(text, why):
    with pytest.raises(PageError, match=why):
        read(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("mgap fti --model M --out DIR", "No such command 'fti'"),
        ("mgap fit --model M --output DIR", "No such option"),
        ("mgap fit --model M", "--out"),
        ("mgap diagnose --model M --scenes many", "a valid integer"),
        ("mgap score chiar --captions a.jsonl", "No such option"),
        ("cat a.txt | mgap ask", "Missing argument"),
        ("python bench/no_such.py", "no such file"),
        ("python bench/capacity.py --no-such-flag", "unrecognized arguments"),
        ("python -m research.frontier draw", "the following arguments are required"),
        ("python -m mgap.pocket.no_such", "no such module"),
        ("make no-such-target", "no-such-target"),
        ('pip install "mgap[no_such]"', "no extra 'no_such'"),
        ("kubectl apply -f examples/serving/no.yaml", "no such file"),
        ("torchrun --nproc_per_node 2 -m mgap.cli.main rnu pope", "No such command 'rnu'"),
    ],
)
def test_a_wrong_command_is_not_understood(text, why):
    with pytest.raises(NotUnderstood, match=why):
        parse(command(text))


@pytest.mark.parametrize(
    "text",
    [
        "mgap fit --model M --out DIR",
        "mgap diagnose --model pocket/llava --alpha 0 .25 .5",
        "mgap score runs/x",
        "mgap serve MODEL --prior DIR -- --tensor-parallel-size 4",
        "python -m research.frontier draw docs/beyond/llava --out figures",
        "python bench/capacity.py",
        "mgap --install-completion",
        "make demo",
        'pip install "mgap[vllm]"',
    ],
)
def test_a_right_command_is_understood_and_not_carried_out(text, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    parse(command(text))
    assert list(tmp_path.iterdir()) == []


def test_running_text_may_leave_words_out_but_not_misspell_them():
    for text in ("mgap fit", "mgap run ... --engine vllm", "mgap ask IMAGE QUESTION --model ... --method vcd"):
        parse(command(text, is_inline=True))
    for text in ("mgap fti", "mgap run ... --engin vllm", "mgap ask IMAGE --modle M"):
        with pytest.raises(NotUnderstood):
            parse(command(text, is_inline=True))


def test_what_running_text_may_leave_out_a_whole_command_may_not_afterwards():
    parse(command("mgap fit --model M", is_inline=True))
    with pytest.raises(NotUnderstood, match="--out"):
        parse(command("mgap fit --model M"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("false", ""),
        ("false | cat", ""),
        ("false &\ntrue", ""),
        ("no-such-program", ""),
        ("true", "mgap: refused"),
        ("echo mgap: other >&2; exit 2", "mgap: refused"),
        ("echo one; echo two", "two\none"),
    ],
)
def test_a_command_that_does_not_do_what_the_page_says_fails(text, said, tmp_path):
    with pytest.raises(Failed):
        execute(command(text, said=said), tmp_path, {}, {})


def test_a_command_runs_as_it_stands_with_flags_behind_it(tmp_path):
    execute(command('echo "a  b" | tee out.txt   # a comment'), tmp_path, {}, {"echo": "--c"})
    assert (tmp_path / "out.txt").read_text() == "a  b --c\n"


def test_ctrl_c_ends_a_command_even_where_the_tests_ignore_it(tmp_path):
    kept = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(Failed, match="exit status"):
            execute(command("kill -INT $$\necho on > after.txt"), tmp_path, {}, {})
    finally:
        signal.signal(signal.SIGINT, kept)
    assert not (tmp_path / "after.txt").exists()


@pytest.mark.parametrize("text", ["mgap ls methods > out.txt", "python examples/script.py a b > out.txt"])
def test_the_quick_programs_do_what_the_slow_ones_do(text, shelf, tmp_path):
    script = tmp_path / "examples" / "script.py"
    script.parent.mkdir()
    script.write_text("import sys, beside\nif __name__ == '__main__':\n    print(sys.argv, beside.X, __file__)\n")
    (script.parent / "beside.py").write_text("X = 1\n")
    told = []
    for env in (shelf.environment_of("README.md"), shelf.environment_of("page.md")):
        execute(command(text), tmp_path, env, {})
        told.append((tmp_path / "out.txt").read_text())
    assert told[0] == told[1] != ""


@pytest.mark.parametrize("text", ["mgap no-such-verb", "mgap score implied --accuracy many", "python examples/no_such.py"])
def test_the_quick_programs_fail_as_the_slow_ones_do(text, shelf, tmp_path):
    with pytest.raises(Failed, match="exit status 2"):
        execute(command(text), tmp_path, shelf.environment_of("page.md"), {})


def test_what_is_printed_is_compared_with_the_page(tmp_path):
    execute(command("echo one; echo; echo two; echo three", said="one\ntwo"), tmp_path, {}, {})
    execute(command("echo 'mgap: refused: say more' >&2; exit 2", said="mgap: refused: say more"), tmp_path, {}, {})


def test_what_a_block_prints_is_compared_as_a_whole_with_numbers_that_are_close(tmp_path):
    shown = "one 50.1%\n...\n│ a row │\nthree"
    execute(command("echo one 50%"), tmp_path, {}, {})
    execute(command("echo two; echo three", said=shown, begins=False), tmp_path, {}, {})
    execute(command("echo one 60%"), tmp_path, {}, {})
    with pytest.raises(Failed, match="one 50"):
        execute(command("echo two; echo three", said=shown, begins=False), tmp_path, {}, {})


def test_what_a_block_of_python_prints_is_compared_too(request, shelf, tmp_path):
    path = tmp_path / "page.md"
    path.write_text("```python\nprint('one')\n```\n```text\none\n```\n```python\nprint('one')\n```\n```text\ntwo\n```\n")
    right, wrong = Markdown.from_parent(request.session, path=path, shelf=shelf).collect()
    right.runtest()
    with pytest.raises(Failed, match="it did not print 'two'"):
        wrong.runtest()


def test_every_added_flag_is_one_of_its_command():
    for pattern, flags, _ in ADDED:
        assert flags.startswith("--"), pattern
    assert added(command("mgap run pope --model pocket/llava --scenes 50")) == {"mgap": "--scenes 2 --split adversarial"}
    assert added(command("mgap ls methods")) == {}
    assert added(command("mgap run pope --model pocket/llava --scenes 50", is_shown=True)) == {}


def test_a_snippet_is_given_what_it_reads_and_does_not_make(monkeypatch):
    made = []
    monkeypatch.setattr("given.GIVEN", {"model": lambda _: made.append("model") or 1})
    names = {}
    supply(compile("model = 2", "", "exec"), names)
    assert (names, made) == ({}, [])
    supply(compile("print(model)", "", "exec"), names)
    assert (names, made) == ({"model": 1}, ["model"])


PAGE = """\
Words, with `mgap fit --modle M`.

'''bash
echo one > made.txt
mgap-no-such-command
'''
'''python
with open("made.txt") as file:
    number = len(file.read())
'''
'''python
assert number == 4
assert number == 5
'''
<!-- needs: gpu -->
'''bash
mgap run pope --model pocket/llava --shcard 0/2
'''
"""


def test_a_page_is_run_in_one_folder_and_every_mistake_in_it_is_caught(request, shelf, tmp_path):
    path = tmp_path / "page.md"
    path.write_text(PAGE.replace("'''", "```"))
    page = Markdown.from_parent(request.session, path=path, shelf=shelf)
    made, missing, read, compared, parsed, inline = page.collect()
    assert [item.name.split()[0] for item in (made, missing, read, compared, parsed)] == ["4", "5", "8", "12", "17"]
    made.runtest()
    with pytest.raises(Failed, match="mgap-no-such-command: command not found"):
        missing.runtest()
    read.runtest()
    with pytest.raises(AssertionError):
        compared.runtest()
    with pytest.raises(NotUnderstood, match="No such option: --shcard"):
        parsed.runtest()
    with pytest.raises(NotUnderstood, match="No such option: --modle"):
        inline.runtest()
