"""`mgap inspect` as a user types it: mistakes are told in one sentence, before anything slow."""

import os
import signal
import sys
from subprocess import PIPE

import httpx
import pytest

from mgap.inspector import server
from tests import processes


def test_help_names_the_variable_and_imports_nothing_heavy():
    code = "import sys; sys.argv[1:] = ['inspect', '--help']\nimport atexit\nfrom mgap.cli.main import main\n"
    code += "atexit.register(lambda: print({'torch', 'gradio'} & set(sys.modules)))\nmain()"
    done = processes.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.rstrip().rpartition("\n")[2]) == (0, "set()")
    assert "MGAP_INSPECT_PASSWORD" in done.stdout


def test_it_stands_among_the_verbs(run):
    status, out, _ = run("--help")
    assert status == 0
    assert out.index("\n  fit ") < out.index("\n  inspect ") < out.index("\n  ls ")


def test_without_gradio_the_extra_is_named_before_anything_slow():
    code = """
import builtins, sys
sys.modules["gradio"] = None
sys.argv[1:] = ["inspect", "--model", "no/such-model"]
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "gradio" else found(name, *more)
from mgap.cli.main import main
try:
    main()
finally:
    assert "torch" not in sys.modules
"""
    done = processes.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == 'mgap: mgap inspect needs gradio; install it with: pip install "mgap[inspector]"\n'


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--model", "pocket/lava"], "no embedded model 'pocket/lava'"),
        (["--bank", "b"], "--bank b belongs to one model, and 2 are given"),
        (["--model", "pocket/llava", "--prior", "/nowhere"], "/nowhere"),
        (["--model", "pocket/llava", "--revision", "main"], "comes with the package and has no revisions"),
        (["--password", ""], "--password is empty"),
        (["--runs", __file__], "is a file: give the folder that holds runs"),
        (["--host", "192.0.2.1"], "--host 192.0.2.1 is no address of this machine"),
        (["--max-mb", "0"], "megabytes=0.0"),
        (["--max-pixels", "0"], "pixels=0"),
        (["--device", "cuda:99", "--model", "pocket/llava"], "device 'cuda:99' was asked for"),
    ],
)
def test_a_mistake_is_one_sentence(run, words, sentence, monkeypatch):
    monkeypatch.delenv("MGAP_INSPECT_PASSWORD", raising=False)
    monkeypatch.setattr("mgap.inspector.model_shelf.load", load_nothing)
    status, out, err = run("inspect", "--port", 0, "--no-open", *words)
    assert (status, out) == (2, "")
    assert err.startswith("mgap: ")
    assert sentence in err
    assert err.count("\n") == 1


def load_nothing(name, **how):
    raise AssertionError(f"{name} would be loaded")


def test_a_port_that_is_taken_is_told_before_models_are_loaded(run):
    with server.bind("127.0.0.1", 0) as door:
        port = door.getsockname()[1]
        status, _, err = run("inspect", "--port", port)
    assert status == 2
    assert err == f"mgap: port {port} is taken, perhaps by another inspector: choose another with --port, or --port 0\n"


@pytest.fixture
def inspect(tmp_path):
    """Starts `mgap inspect WORDS` in a process of its own, by Python code before it if one is given."""
    quiet = {name: value for name, value in os.environ.items() if name != "MGAP_INSPECT_PASSWORD"}

    def start(*words, before=""):
        code = f"import sys; sys.argv[:] = ['mgap', *sys.argv[1:]]\n{before}\nfrom mgap.cli.main import main; main()"
        command = [sys.executable, "-c", code, "inspect", "--port", "0", "--no-open", *words]
        return processes.started(command, cwd=tmp_path, env=quiet, stdout=PIPE, stderr=PIPE, text=True)

    return start


IGNORING = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_opening_it_to_the_network_warns_and_ending_it_while_it_loads_is_no_traceback(inspect, by):
    with inspect("--host", "0.0.0.0") as process:
        first = process.stderr.readline()
        process.send_signal(by)
        out, err = process.communicate()
    assert first.startswith("mgap: warning: NO PASSWORD IS SET: everyone on the networks of this machine can open")
    assert (process.returncode, out) == (128 + by, "")
    assert "Traceback" not in err


def test_started_with_ctrl_c_ignored_it_says_how_it_ends_and_ends_so_while_it_loads(inspect):
    with inspect(before=IGNORING) as process:
        first = process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
    assert first == f"mgap: Ctrl-C is ignored here; end this with: kill {process.pid}\n"
    assert (process.returncode, out) == (143, "")
    assert "Traceback" not in err


@pytest.mark.long
def test_started_with_ctrl_c_ignored_its_page_outlives_ctrl_c_and_kill_ends_it(inspect, checkpoints):
    with inspect("--model", str(checkpoints["llava"]), before=IGNORING) as process:
        address = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        url = address.removeprefix("mgap inspect: ").split()[0]
        assert httpx.get(url, trust_env=False).status_code == 200
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
    assert address == f"mgap inspect: {url} (kill {process.pid} ends it)\n"
    assert (process.returncode, out) == (143, "")
    assert "Traceback" not in err
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)


def test_what_lies_in_the_folder_of_prior_goes_to_the_methods_that_need_it(tmp_path):
    from mgap.cli.inspect import _distribute

    place, given = str(tmp_path), {"tether": {"rho": 2.0}}
    assert _distribute(None, given) is None
    assert _distribute("someone/prior", given) == "someone/prior"  # of the hub: a prior
    (tmp_path / "bank.json").write_text("{}")
    assert _distribute(place, given) is None
    assert given == {"tether": {"rho": 2.0, "bank": place}}
    (tmp_path / "subspace.json").write_text("{}")
    assert _distribute(place, {}) == place
