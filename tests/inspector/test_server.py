"""Who can reach the page, and what it refuses to whom: asked over HTTP, of a small page of one question and one picture."""

import os
import signal
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import PIL.Image
import pytest

from mgap.errors import MissingExtra, SettingError
from mgap.inspector import server
from mgap.inspector.guard import MAX_BODY_BYTES, is_loopback
from tests.inspector.visits import PICTURE, ask, served, told


@pytest.fixture(scope="module")
def page():
    with served() as small:
        yield small


@pytest.fixture(scope="module")
def wide():
    """Open to the network, and without our own look at what a page sends: what does Gradio refuse?"""
    with served("unguarded", host="0.0.0.0") as small:
        yield small


def test_a_question_is_answered(page):
    assert '"title":"small"' in page.get("/").text
    assert ask(page).status_code == 200
    assert "What? about None" in told(page)


def test_a_picture_that_was_dropped_is_read_and_another_file_is_not(page, tmp_path):
    here = Path(__file__)
    PIL.Image.new("RGB", (2, 2)).save(tmp_path / "secret.png")
    (tmp_path / "link.png").symlink_to(tmp_path / "secret.png")
    data = (tmp_path / "secret.png").read_bytes()
    (path,) = page.post("/gradio_api/upload", files={"files": ("dropped.png", data)}).json()
    assert path.startswith(page.uploads)
    assert page.get(f"/gradio_api/file={path}").content == data
    assert ask(page, {**PICTURE, "path": path}).status_code == 200
    assert f"What? about {page.uploads}" in told(page)
    outside = os.path.relpath(tmp_path / "secret.png", page.uploads)
    for other in (tmp_path / "secret.png", tmp_path / "link.png", f"{page.uploads}/{outside}", here, page.uploads, "a\0b", ""):
        assert page.get(f"/gradio_api/file={quote(str(other))}").status_code in (403, 404)
        answer = ask(page, {**PICTURE, "path": str(other)})
        assert (answer.status_code, "and another was named" in answer.text) == (403, True)


def test_gradio_itself_refuses_a_file_that_was_not_dropped(wide, tmp_path):
    PIL.Image.new("RGB", (2, 2)).save(tmp_path / "secret.png")
    assert ask(wide, {**PICTURE, "path": str(tmp_path / "secret.png")}).status_code == 200
    assert "about" not in (heard := told(wide))
    assert '"success":false' in heard


def test_a_file_that_is_too_large_is_refused_on_its_way(page):
    answer = page.post("/gradio_api/upload", files={"files": ("large.png", b"x" * 1001)})
    assert (answer.status_code, "exceeded maximum allowed size of 1000 bytes" in answer.text) == (413, True)
    assert page.post("/gradio_api/upload", files={"files": ("small.png", b"x" * 999)}).status_code == 200


@pytest.mark.parametrize(
    "path", ["https://example.com/a.png", "HTTP://169.254.169.254/", " http://localhost/", "file:///etc/passwd"]
)
def test_a_web_address_in_the_place_of_a_file_is_refused(page, path):
    answer = ask(page, {**PICTURE, "path": path})
    assert (answer.status_code, "and another was named" in answer.text) == (403, True)
    nested = ask(page, question=[{"deep": [{"path": path}]}])
    assert nested.status_code == 403


@pytest.mark.parametrize("path", ["/gradio_api/file=https://example.com/a.png", "/gradio_api/file=HTTP:/example.com"])
def test_nothing_is_fetched_for_others(page, path):
    answer = page.get(path)
    assert (answer.status_code, "fetches nothing from other hosts" in answer.text) == (403, True)
    assert page.get(path.replace("file=", "proxy=")).status_code == 404


def test_a_body_that_is_too_large_or_too_deep_is_refused(page):
    assert ask(page, question="x" * MAX_BODY_BYTES).status_code == 413
    deep = page.post("/gradio_api/queue/join", content="[" * 200_000, headers={"content-type": "application/json"})
    assert deep.status_code == 400
    assert ask(page).status_code == 200


def test_a_name_that_another_site_gave_this_machine_is_refused(page, wide):
    for host in ("evil.example", "evil.example:7860", "127.0.0.1.evil.example", "", "[", "10.0.0.1"):
        answer = page.get("/", headers={"host": host})
        assert (answer.status_code, "own names only" in answer.text) == (403, True)
    for host in ("127.0.0.1:7860", "localhost", "LOCALHOST:1", "[::1]:7860"):
        assert page.get("/", headers={"host": host}).status_code == 200
    assert wide.get("/", headers={"host": "lab.example"}).status_code == 200


def test_a_page_may_ask_no_other_host_for_anything(page):
    assert page.get("/").headers["content-security-policy"].startswith("default-src 'self'")


def test_what_gradio_offers_besides_the_page_is_off(page):
    config = page.get("/config").json()
    assert config["footer_links"] == ["settings"]
    assert page.get("/gradio_api/info").json() == {"named_endpoints": {}, "unnamed_endpoints": {}}
    for path in ("/docs", "/redoc", "/openapi.json", "/monitoring", "/monitoring/summary", "/gradio_api/runs"):
        assert page.get(path).status_code == 404, path


@pytest.fixture
def locked():
    with served(password="s\u00e9same") as small:
        yield small


@pytest.mark.long
def test_a_password_is_asked_for_and_ctrl_c_ends_it_tidily(locked):
    (config,) = [part for part in locked.get("/").text.split("<script>") if "gradio_config" in part][:1]
    assert server.LOGIN_MESSAGE in config
    assert '"components":[]' in config
    refused = [
        locked.get("/config"),
        locked.get("/gradio_api/file=/etc/hostname"),
        locked.post("/gradio_api/upload"),
        ask(locked),
    ]
    assert [answer.status_code for answer in refused] == [401] * 4
    assert locked.post("/login", data={"username": "anyone", "password": "sesame"}).status_code == 400
    assert locked.get("/config").status_code == 401
    assert locked.post("/login", data={"username": "anyone", "password": "s\u00e9same"}).json() == {"success": True}
    assert locked.get("/config").status_code == 200
    locked.post("/gradio_api/upload", files={"files": ("dropped.png", b"dropped")}).raise_for_status()
    assert any(Path(locked.uploads).iterdir())
    assert locked.end() == (0, "ended\n", "")
    assert not Path(locked.uploads).exists()


@pytest.fixture
def busy():
    """Takes one question, and does not come to an end with it."""
    with served("busy") as small:
        yield small


@pytest.mark.long
def test_a_flood_is_refused_once_the_queue_is_full_and_nothing_is_sent_out(busy):
    with ThreadPoolExecutor(8) as threads:
        sent = list(threads.map(lambda number: ask(busy, session=f"s{number}"), range(server.QUEUE_SIZE + 8)))
    assert {answer.status_code for answer in sent} == {200, 503}
    assert "Queue is full" in next(answer.text for answer in sent if answer.status_code == 503)
    assert busy.end(signal.SIGTERM) == (0, "ended\n", "")  # small.py would write down whom it wanted to reach
    assert not Path(busy.uploads).exists()


def test_uploads_lie_in_a_folder_of_this_user_that_goes_away(monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", "elsewhere")
    monkeypatch.delenv("GRADIO_ANALYTICS_ENABLED", raising=False)
    with server.private_uploads() as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert (os.environ["GRADIO_TEMP_DIR"], os.environ["GRADIO_ANALYTICS_ENABLED"]) == (str(folder), "False")
        (folder / "left.png").write_bytes(b"x")
    assert not folder.exists()
    assert (os.environ["GRADIO_TEMP_DIR"], "GRADIO_ANALYTICS_ENABLED" in os.environ) == ("elsewhere", False)


def test_a_port_that_is_taken_is_told():
    with server.bind("127.0.0.1", 0) as door:
        port = door.getsockname()[1]
        assert server.address_of("127.0.0.1", door) == f"http://127.0.0.1:{port}"
        assert server.address_of("0.0.0.0", door) == f"http://127.0.0.1:{port}"
        assert server.address_of("::1", door) == f"http://[::1]:{port}"
        with pytest.raises(SettingError, match=rf"port {port} is taken.* --port"):
            server.bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.name.invalid", "."])
def test_an_address_that_is_not_of_this_machine_is_told(host):
    with pytest.raises(SettingError, match=f"--host {host}"):
        server.bind(host, 0)


def test_loopback_is_told_from_other_addresses():
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.com", "localhost.example.com", "")))


def test_opening_it_wider_says_who_can_reach_it():
    assert server.exposure("127.0.0.1", False) == server.exposure("localhost", True) == ""
    open_, closed = server.exposure("0.0.0.0", False), server.exposure("10.0.0.1", True)
    assert "NO PASSWORD IS SET: everyone on the networks of this machine" in open_
    assert "MGAP_INSPECT_PASSWORD" in open_
    assert "everyone who can reach 10.0.0.1 can open the inspector with its password" in closed
    assert "unencrypted" in open_
    assert "unencrypted" in closed


def test_without_gradio_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(server, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"mgap inspect needs gradio; install it with: pip install .mgap\[inspector\]"):
        server.require_gradio("mgap inspect")
