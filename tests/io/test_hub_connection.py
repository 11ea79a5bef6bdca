"""Whether the hub answers: told at once where nobody can, left to its client where somebody may."""

import socket
import sys

import pytest
from huggingface_hub import constants

import mgap
from mgap.errors import MgapError, ModelError
from mgap.io.hub_connection import cached_models, hub_is_away, only_the_cache
from tests import processes


@pytest.fixture
def refusing(monkeypatch):
    """The hub is a port of this machine at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    return address


def test_a_hub_that_refuses_connections_is_away_and_leaves_the_cache(refusing):
    assert "127.0.0.1: Connection refused" in hub_is_away()
    assert only_the_cache("someone/nothing") == {"local_files_only": True}


def test_a_folder_needs_no_hub(refusing, tmp_path):
    assert only_the_cache(str(tmp_path)) == {}


def test_a_name_that_cannot_be_looked_up_is_away(refusing, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")  # a domain that never exists (RFC 2606)
    assert hub_is_away().startswith("hub.invalid: ")


def test_a_hub_that_accepts_connections_is_left_to_its_client(refusing, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert hub_is_away() == ""
        assert only_the_cache("someone/nothing") == {}


def test_a_hub_that_is_slow_is_left_to_its_client(refusing, monkeypatch):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, socket.socket() as first, socket.socket() as second:
        for waiting in (first, second):  # they fill the queue, and a third one hears nothing
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr("mgap.io.hub_connection._TIMEOUT", 0.05)
        assert hub_is_away() == ""


def test_behind_a_proxy_the_client_decides(refusing, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert hub_is_away() == ""


def test_without_a_hub_a_model_and_a_prior_are_refused_in_a_sentence(refusing, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--someone--nothing-7b").mkdir()
    assert cached_models() == ["someone/nothing-7b"]
    with pytest.raises(ModelError, match=r"Connection refused\): check the spelling.*did you mean 'someone/nothing-7b'"):
        mgap.load("someone/nothing-b7")
    with pytest.raises(MgapError, match=r"no subspace 'someone/none': .*Connection refused.*check the spelling"):
        mgap.Subspace.load("someone/none")


def test_the_command_line_does_not_try_again_and_again(refusing, picture_file, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_ENDPOINT", refusing)
    words = ["ask", picture_file, "What?", "--model", "someone/nothing", "--method", "vanilla"]
    done = processes.run([sys.executable, "-m", "mgap.cli.main", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "the hub cannot be reached (127.0.0.1: Connection refused)" in done.stderr
    assert "Retrying" not in done.stderr
