"""Fetching published files from a real server on this machine: whole and checked, or not at all."""

import hashlib
import io
import os
import sys
import threading
import zipfile
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import PIPE

import pytest

from mgap.benchmarks import published_files as module
from mgap.benchmarks.published_files import File, PublishedBenchmark, cache, fetch, find_data, names, published
from mgap.errors import BenchmarkError, SettingError
from tests import processes

TEXT = b"one\ntwo\n" * 100_000


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Cut(BaseHTTPRequestHandler):
    """Promises everything and sends half; of more, and with a pause before the end, when the path says so."""

    def do_GET(self):
        whole = TEXT * 4 if "slow" in self.path else TEXT
        self.send_response(200)
        self.send_header("Content-Length", str(len(whole)))
        self.end_headers()
        self.wfile.write(whole[: len(whole) // 2])
        self.wfile.flush()
        if "slow" in self.path:
            self.server.go_on.wait()

    def log_message(self, *_):
        pass


@pytest.fixture
def serve():
    servers = []

    def start(handler):
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads, server.go_on = True, threading.Event()
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return server, f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.go_on.set()
        server.shutdown()
        server.server_close()


def described(path, url, data, **more):
    return File(path, url, len(data), hashlib.sha256(data).hexdigest(), "a project", "MIT", **more)


@pytest.fixture
def site(tmp_path, serve):
    """A folder that is served, and its address."""
    folder = tmp_path / "site"
    folder.mkdir()
    _, address = serve(partial(Quiet, directory=folder))
    return folder, address


def only(folder):
    """Every file below a folder, by its path."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_files_are_fetched_once_and_checked_each_time(site, tmp_path):
    folder, address = site
    (folder / "a.txt").write_bytes(TEXT)
    wanted = PublishedBenchmark("toy", (described("deep/er/b.txt", f"{address}/a.txt", TEXT),), ())
    heard = []
    target = fetch(wanted, tmp_path / "here", lambda *news: heard.append(news))
    assert target == tmp_path / "here"
    assert (target / "deep/er/b.txt").read_bytes() == TEXT
    assert only(target) == {"deep/er/b.txt"}
    assert heard[-1] == ("deep/er/b.txt", len(TEXT), len(TEXT))
    assert (target / "deep/er/b.txt").stat().st_mode & 0o777 == 0o644
    (folder / "a.txt").unlink()
    assert fetch(wanted, target) == target  # nothing is asked of the server
    (target / "deep/er/b.txt").write_bytes(b"changed")
    with pytest.raises(BenchmarkError, match=r"b\.txt: not the published file .*remove it"):
        fetch(wanted, target)
    assert (target / "deep/er/b.txt").read_bytes() == b"changed"


def test_a_changed_file_of_the_same_length_is_refused(site, tmp_path):
    folder, address = site
    (folder / "a.txt").write_bytes(TEXT.replace(b"two", b"six"))
    wanted = PublishedBenchmark("toy", (described("a.txt", f"{address}/a.txt", TEXT),), ())
    with pytest.raises(BenchmarkError, match=r"a\.txt could not be fetched \(what came has SHA-256"):
        fetch(wanted, tmp_path / "here")
    assert only(tmp_path / "here") == set()


def test_a_reply_that_is_cut_off_is_refused(serve, tmp_path):
    _, address = serve(Cut)
    wanted = PublishedBenchmark("toy", (described("a.txt", f"{address}/a.txt", TEXT),), ())
    with pytest.raises(BenchmarkError, match=r"400,000 bytes came, and the published file has 800,000"):
        fetch(wanted, tmp_path / "here")
    assert only(tmp_path / "here") == set()


def test_without_a_network_the_error_says_what_to_put_where(site, tmp_path):
    folder, address = site
    (folder / "there.txt").write_bytes(TEXT)
    nowhere = "http://127.0.0.1:9"  # nobody listens
    files = (
        described("there.txt", f"{address}/there.txt", TEXT),
        described("q/one.json", f"{nowhere}/x/one.json", b"1"),
        described("q/two.json", f"{nowhere}/x/two.json", b"2"),
    )
    with pytest.raises(BenchmarkError) as refusal:
        fetch(PublishedBenchmark("toy", files, ()), tmp_path / "here")
    first, *rest = str(refusal.value).splitlines()
    assert first.startswith(f"{nowhere}/x/one.json could not be fetched (")
    assert first.endswith(f"Connection refused); put these into {tmp_path / 'here'} by hand:")
    assert rest == [
        f"  q/one.json  from  {nowhere}/x/one.json",
        f"  q/two.json  from  {nowhere}/x/two.json",
    ]
    assert only(tmp_path / "here") == {"there.txt"}
    (tmp_path / "here" / "q").mkdir(exist_ok=True)
    (tmp_path / "here" / "q" / "one.json").write_text("1")
    (tmp_path / "here" / "q" / "two.json").write_text("2")
    assert fetch(PublishedBenchmark("toy", files, ()), tmp_path / "here") == tmp_path / "here"


def test_an_address_without_the_file_is_named(site, tmp_path):
    _, address = site
    with pytest.raises(BenchmarkError, match=r"gone\.txt could not be fetched \(HTTP 404: File not found"):
        fetch(PublishedBenchmark("toy", (described("a.txt", f"{address}/gone.txt", TEXT),), ()), tmp_path)


def test_a_killed_fetch_leaves_no_half_file(serve, tmp_path):
    _, address = serve(Cut)
    target, digest = tmp_path / "here", hashlib.sha256(TEXT).hexdigest()
    code = (
        "from mgap.benchmarks.published_files import *\n"
        f"wanted = PublishedBenchmark('toy', (File('a.txt', '{address}/slow', {len(TEXT)}, '{digest}', 'p', 'MIT'),), ())\n"
        f"fetch(wanted, {str(target)!r}, lambda *news: print(*news, flush=True))"
    )
    with processes.started([sys.executable, "-c", code], stdout=PIPE, text=True) as child:
        assert child.stdout.readline().startswith("a.txt ")  # a piece has come
        assert only(target)  # it is being written, under another name
        assert not (target / "a.txt").exists()
    assert not (target / "a.txt").exists()
    _, address = serve(partial(Quiet, directory=tmp_path))
    (tmp_path / "a.txt").write_bytes(TEXT)
    fetch(PublishedBenchmark("toy", (described("a.txt", f"{address}/a.txt", TEXT),), ()), target)
    assert (target / "a.txt").read_bytes() == TEXT


def test_what_is_needed_of_an_archive_is_unpacked_and_mended(site, tmp_path):
    folder, address = site
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("annotations/captions.json", TEXT)
        archive.writestr("annotations/other.json", "not asked for")
    (folder / "all.zip").write_bytes(packed.getvalue())
    file = described("all.zip", f"{address}/all.zip", packed.getvalue(), unpack=("annotations/captions.json",))
    target = fetch(PublishedBenchmark("toy", (file,), ()), tmp_path / "here")
    assert only(target) == {"all.zip", "annotations/captions.json"}
    inner = target / "annotations" / "captions.json"
    assert inner.read_bytes() == TEXT
    before = inner.stat().st_mtime_ns
    fetch(PublishedBenchmark("toy", (file,), ()), target)
    assert inner.stat().st_mtime_ns == before  # it was as the archive has it
    inner.write_bytes(TEXT[:-1] + b"!")
    fetch(PublishedBenchmark("toy", (file,), ()), target)
    assert inner.read_bytes() == TEXT
    with pytest.raises(BenchmarkError, match=r"all\.zip: gone\.json cannot be unpacked"):
        fetch(PublishedBenchmark("toy", (replace(file, unpack=("gone.json",)),), ()), target)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_refused(site, tmp_path):
    folder, address = site
    (folder / "a.txt").write_bytes(TEXT)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    with pytest.raises(BenchmarkError, match="cannot be written"):
        fetch(PublishedBenchmark("toy", (described("a.txt", f"{address}/a.txt", TEXT),), ()), closed)


def test_a_file_or_a_folder_in_the_way_is_refused(tmp_path):
    wanted = PublishedBenchmark("toy", (described("a.txt", "http://127.0.0.1:9/a.txt", TEXT),), ())
    (tmp_path / "file").write_text("")
    with pytest.raises(BenchmarkError, match="is a file"):
        fetch(wanted, tmp_path / "file")
    (tmp_path / "here" / "a.txt").mkdir(parents=True)
    with pytest.raises(BenchmarkError, match="a folder where a file must go"):
        fetch(wanted, tmp_path / "here")


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("MGAP_CACHE", str(tmp_path / "cache"))
    assert cache("pope") == tmp_path / "cache" / "pope"
    monkeypatch.delenv("MGAP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache("pope") == tmp_path / "xdg" / "mgap" / "pope"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache("pope") == tmp_path / ".cache" / "mgap" / "pope"


def test_data_is_found_in_the_folder_given_else_in_the_cache_else_fetched(monkeypatch, site, tmp_path):
    folder, address = site
    (folder / "a.txt").write_bytes(TEXT)
    monkeypatch.setenv("MGAP_CACHE", str(tmp_path / "cache"))
    wanted = PublishedBenchmark("toy", (described("a.txt", f"{address}/a.txt", TEXT),), ())
    monkeypatch.setattr(module, "published", lambda _name: wanted)
    assert find_data("toy", folder) == folder  # as it is
    with pytest.raises(BenchmarkError, match="no such folder of toy's files"):
        find_data("toy", tmp_path / "nothing")
    assert find_data("toy") == tmp_path / "cache" / "toy"
    (folder / "a.txt").unlink()
    assert (find_data("toy") / "a.txt").read_bytes() == TEXT


def test_every_published_file_has_an_address_at_one_commit_or_a_checksum_others_list_too():
    assert names() == ["pope", "repope", "chair", "amber", "mme", "hallusionbench"]
    for name in names():
        wanted = published(name)
        assert wanted.pictures
        for file in wanted.files:
            assert len(file.sha256) == 64
            assert file.size > 0
            assert file.licence
            assert not Path(file.path).is_absolute()
            assert ".." not in file.path
            assert file.url.startswith(("https://raw.githubusercontent.com/", "http://images.cocodataset.org/"))
            assert "/main/" not in file.url
            assert "/master/" not in file.url
    with pytest.raises(SettingError, match=r"unknown benchmark 'vqa': choose from pope, repope, chair, amber, mme, hallu"):
        published("vqa")


def test_the_list_has_the_checksums_of_the_unchanged_copies(shared):
    for name in names():
        for file in published(name).files:
            copy = shared / "data" / name / file.path
            if file.path == "annotations_trainval2014.zip":
                continue  # COCO's own are not among the copies
            data = copy.read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (file.size, file.sha256), file.path


def test_a_whole_benchmark_is_fetched(shared, serve, tmp_path):
    _, address = serve(partial(Quiet, directory=shared / "data"))
    for name in ("pope", "repope", "amber", "mme", "hallusionbench"):
        real = published(name)
        local = replace(real, files=tuple(replace(file, url=f"{address}/{name}/{file.path}") for file in real.files))
        assert only(fetch(local, tmp_path / name)) == {path for file in real.files for path in (file.path, *file.unpack)}
