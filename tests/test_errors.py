"""What other people's errors become in a sentence of ours."""

from mgap.errors import one_line


def test_a_long_error_is_cut_and_says_so():
    assert one_line(ValueError("one\n  two")) == "one two"
    assert one_line(ValueError("one two three"), 13) == "one two three"
    assert one_line(ValueError("one two three"), 8) == "one two ..."
