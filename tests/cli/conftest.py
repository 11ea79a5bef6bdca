"""The command line, run in this process."""

import sys
import warnings

import pytest

from mgap.cli.main import main


@pytest.fixture
def run(monkeypatch, capsys):
    """Run `mgap WORDS` in this process; returns exit status, standard output and standard error."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["mgap", *map(str, words)])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        capsys.readouterr()
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            try:
                main()
                status = 0
            except SystemExit as leave:
                status = leave.code or 0
        return status, *capsys.readouterr()

    return call
