"""What passes the guard: the page's own routes, from its own site, with the password, within limits; and nothing else."""

import asyncio
import json
import re
import socket
from pathlib import Path

import pytest

from mgap.inspector import listeners, password_attempts, request_body, server
from mgap.inspector.page_routes import ROUTES
from tests.inspector.visits import API, FILES, FORM, JSON, OWN, PASSWORD, REQUESTS, ask, body_of, event, inside, served, told

OTHER = "https://evil.example"
WRITING = [path for (method, path), _ in REQUESTS.items() if method == "POST"]


@pytest.fixture(scope="module")
def page():
    with inside() as asked:
        yield asked


@pytest.fixture
def fresh():
    with inside(max_bytes=200_000) as asked:
        yield asked


@pytest.fixture
def locked():
    with inside(password=PASSWORD) as asked:
        yield asked


def send_like_the_page(asked, method, path, **headers):
    kind, _ = REQUESTS[method, path]
    return asked.request(method, path, body_of(kind), content_type=kind or None, **headers)


def test_there_is_a_request_here_for_every_route_of_the_page():
    for route in ROUTES:
        for method in route.methods:
            assert [path for known, path in REQUESTS if known == method and re.fullmatch(route.path, path)], route


@pytest.mark.parametrize("path", [f"{API}/run/upload", f"{API}/component_server/", f"{API}/cancel"])
def test_a_path_that_ends_like_an_upload_is_checked_like_any_other(page, path):
    named = {**event(), "data": [{"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}]}
    status, text = page.request("POST", path, json.dumps(named).encode(), content_type=JSON)
    assert (status, "and another was named" in text) == (403, True)
    assert page.request("POST", path, *[b" " * 1_000_000] * 9, content_type=JSON)[0] == 413
    assert page.request("POST", path, b"upload", content_type=JSON)[0] == 400


@pytest.mark.parametrize("root", ["", "/lab"])
def test_what_the_page_does_not_use_is_not_there(page, root):
    page.reached.clear()
    for method, path in (
        ("POST", f"{API}/call/upload"), ("POST", f"{API}/api/upload"), ("POST", f"{API}/queue/join/upload"),
        ("POST", f"/{API}/upload"), ("POST", "/upload"), ("POST", f"{API}/upload/"), ("POST", f"{API}/stream/one"),
        ("GET", f"{API}/queue/status"), ("GET", f"{API}/deep_link"), ("GET", f"{API}/file/a.png"), ("GET", f"{API}/proxy=x"),
        ("GET", f"{API}/startup-events"), ("GET", f"{API}/token"), ("GET", "/monitoring"), ("POST", f"{API}/vibe-edit"),
    ):  # fmt: skip
        assert page.request(method, root + path, root=root)[0] == 404, path
    for method, path in (("PUT", f"{API}/upload"), ("OPTIONS", f"{API}/queue/join"), ("POST", "/"), ("DELETE", "/config")):
        assert page.request(method, root + path, root=root)[0] == 405, path
    assert page.reached == []
    assert page.request("GET", f"{root}/config", root=root)[0] == 200


@pytest.mark.parametrize("path", WRITING)
def test_what_another_site_sends_is_refused_and_what_no_browser_sends_is_not(page, path):
    foreign = [
        {"origin": OTHER},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:7861"},
        {"origin": "http://127.0.0.1:7860.evil.example"},
        {"origin": OTHER, "sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ]
    page.reached.clear()
    for headers in foreign:
        status, text = send_like_the_page(page, "POST", path, **headers)
        assert (status, "of another site" in text) == (403, True), headers
    assert page.reached == []
    own = [
        {"origin": OWN},
        {"origin": OWN, "sec_fetch_site": "same-origin"},
        {"origin": OTHER, "x_forwarded_host": "evil.example"},
    ]
    for headers in ({}, *own):  # none: gradio_client; the last: a proxy that says by which name it was asked
        send_like_the_page(page, "POST", path, **headers)
    assert page.reached == [("POST", path)] * 4


def test_another_site_may_lead_to_the_page_and_read_nothing(page):
    led = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert page.request("GET", "/", **led)[0] == 200
    assert page.request("GET", "/", sec_fetch_site="cross-site", sec_fetch_mode="no-cors")[0] == 403
    assert page.request("GET", "/config", origin=OTHER)[0] == 403
    assert page.request("GET", "/logout", **led)[0] == 403


def test_all_but_the_login_page_needs_the_password(locked):
    for (method, path), (_, is_open) in REQUESTS.items():
        locked.reached.clear()
        status, _ = send_like_the_page(locked, method, path)
        assert (status == 401, locked.reached) == (not is_open, [(method, path)] if is_open else []), (method, path)
    for method, path in REQUESTS:
        locked.reached.clear()
        status, _ = send_like_the_page(locked, method, path, cookie=locked.cookie())
        assert (status == 401, locked.reached) == (False, [(method, path)]), (method, path)


class Clock:
    """Time that passes only while somebody sleeps for it, or when it is moved on."""

    def __init__(self):
        self.now, self.asked = 0.0, []

    async def sleep(self, seconds):
        self.asked.append(seconds)

    def attempts(self):
        return password_attempts.PasswordAttempts(lambda: self.now, self.sleep)


@pytest.fixture
def clock(monkeypatch):
    stopped = Clock()
    monkeypatch.setattr(server, "PasswordAttempts", stopped.attempts)
    return stopped


@pytest.fixture
def guessed(clock, locked):
    """Thirty wrong passwords were sent at one moment."""
    return [locked.log_in(f"wrong{number}") for number in range(30)]


def test_wrong_passwords_wait_longer_and_longer_and_then_are_not_tried(guessed, clock, locked):
    assert [status for status, _ in guessed] == [400] * 5 + [429] * 25
    assert clock.asked == [1, 3, 7, 15]  # from the same moment: 1, 2, 4 and 8 seconds between them
    assert "wait 31 seconds" in guessed[-1][1]
    assert locked.reached == [("POST", "/login")] * 5


def test_after_wrong_passwords_the_right_one_gets_in_and_they_are_forgotten(guessed, clock, locked):
    assert locked.log_in()[0] == 429
    clock.now, clock.asked = 31.0, []
    assert locked.log_in()[0] == 200
    assert locked.log_in()[0] == 200
    assert clock.asked == []


def test_another_address_does_not_wait_for_a_guesser_but_many_together_do(guessed, clock, locked):
    assert locked.log_in(client="10.0.0.2")[0] == 200
    assert clock.asked == [1, 3, 7, 15]
    clock.asked = []
    found = [locked.log_in("wrong", client=f"10.0.1.{number}")[0] for number in range(60)]
    assert (found[:15], found[-1]) == ([400] * 15, 429)
    assert clock.asked[:4] == [1, 3, 5, 7]
    clock.now += 30
    assert locked.log_in(client="10.0.0.3")[0] == 200


def test_what_is_remembered_of_wrong_passwords_stays_small_and_passes():
    clock = Clock()
    attempts = clock.attempts()

    async def try_from(*addresses):
        for address in addresses:
            clock.now += 1000
            await attempts.wait_for_turn(address)

    asyncio.run(try_from(*(f"10.0.{n // 256}.{n % 256}" for n in range(2000)), *["10.0.0.1"] * 20))
    assert (len(attempts.known), clock.asked) == (password_attempts.ADDRESSES, [])
    attempts.known.clear()
    asyncio.run(try_from("2001:db8::1", "2001:db8::2", "10.0.0.1", "::ffff:10.0.0.1"))  # of two networks
    assert len(attempts.known) == 2


def test_a_password_of_any_letters_is_wrong_and_no_error(clock, locked):
    form = b'--b\r\nContent-Disposition: form-data; name="username"\r\n\r\na\r\n'
    form += b'--b\r\nContent-Disposition: form-data; name="password"\r\n\r\n+2AA-\r\n--b--\r\n'
    assert locked.request("POST", "/login", form, content_type=f"{FILES}; charset=utf-7")[0] == 400
    assert locked.request("POST", "/login", b"x" * 20_000, content_type=FORM)[0] == 413


def upload(asked, *data, name="a.png", **how):
    parts = b"".join(
        f'--b\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'.encode() + each + b"\r\n"
        for each in data
    )
    return asked.request("POST", f"{API}/upload", parts + b"--b--\r\n", content_type=FILES, **how)


def test_the_oldest_uploads_make_way_for_new_ones(fresh):
    paths = [Path(json.loads(upload(fresh, number.to_bytes(1, "big") * 190_000)[1])[0]) for number in range(40)]
    held = sum(path.stat().st_size for path in fresh.uploads.rglob("*") if path.is_file())
    assert 10 * 190_000 < held <= 25 * 200_000
    assert [path.exists() for path in paths] == sorted(path.exists() for path in paths)
    assert paths[-1].read_bytes() == b"\x27" * 190_000
    assert fresh.request("GET", f"{API}/file={paths[0]}")[0] in (403, 404)


def test_what_is_left_of_uploads_that_broke_off_counts_too(fresh):
    start = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    for _ in range(40):
        fresh.request("POST", f"{API}/upload", start, b"x" * 190_000, content_type=FILES)
    held = sum(path.stat().st_size for path in fresh.uploads.rglob("*") if path.is_file())
    assert held <= 25 * 200_000


def test_many_files_in_one_upload_are_together_no_larger_than_one(fresh):
    status, text = upload(fresh, *[b"x" * 190_000] * 2)
    assert (status, "larger than the 265,536 bytes" in text) == (413, True)
    assert upload(fresh, b"x" * 200_000)[0] == 200


@pytest.mark.parametrize("path", WRITING)
def test_a_body_that_does_not_come_is_not_waited_for(page, monkeypatch, path):
    monkeypatch.setattr(request_body, "SILENT_SECONDS", 0.01)
    kind, _ = REQUESTS["POST", path]
    status, text = page.request("POST", path, body_of(kind)[:20], content_type=kind, stalls=True)
    assert (status, "did not come in time" in text) == (408, True)


def test_a_body_that_drips_is_not_waited_for_either(page, monkeypatch):
    monkeypatch.setattr(request_body, "BODY_SECONDS", 0.0)
    assert page.request("POST", f"{API}/upload", *[b"x"] * 9, content_type=FILES)[0] == 408


def test_of_too_many_bodies_the_one_that_was_silent_longest_is_given_up(page, monkeypatch):
    monkeypatch.setattr(request_body, "OPEN_BODIES", 3)

    async def storm():
        stalled = [asyncio.create_task(page.send("POST", path, b"{", stalls=True)) for path in WRITING[:3]]
        await asyncio.sleep(0)
        assert not any(task.done() for task in stalled)
        answers = [await page.send("POST", f"{API}/reset", json.dumps({"event_id": "1"}).encode(), content_type=JSON)]
        answers += [await stalled[0]]
        left = [task.done() for task in stalled[1:]]
        for task in stalled[1:]:
            task.cancel()
        await asyncio.gather(*stalled[1:], return_exceptions=True)
        return answers, left

    (answered, ended), left = page.loop.run_until_complete(storm())
    assert (answered[0], ended[0], "Too many requests" in ended[1], left) == (200, 503, True, [False, False])


@pytest.fixture(scope="module")
def hurried():
    with served("hurried") as small:
        yield small


@pytest.mark.long
def test_a_client_that_sends_headers_and_nothing_else_is_sent_away(hurried):
    open_ = []
    for path in (f"{API}/queue/join", f"{API}/upload", "/login") * 10:
        client = socket.create_connection((hurried.base_url.host, hurried.base_url.port))
        client.sendall(
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\nContent-Type: {FILES}\r\n\r\n".encode()
        )
        open_.append(client)
    for client in open_:
        with client, client.makefile("rb") as said:
            assert said.read().startswith(b"HTTP/1.1 408 ")  # and the connection is closed


@pytest.mark.long
def test_a_question_that_nobody_listens_to_keeps_nobody_waiting(hurried):
    for number in range(4):
        assert ask(hurried, question="What is endless?", session=f"deaf{number}").status_code == 200
    assert ask(hurried).status_code == 200
    assert "What? about None" in told(hurried)


def test_of_a_session_that_is_over_nothing_is_kept(fresh, monkeypatch):
    monkeypatch.setattr(listeners, "LISTEN_SECONDS", 0.0)
    queue = fresh.gradio.get_blocks()._queue

    async def visit():
        joined = await fresh.send("POST", f"{API}/queue/join", body_of(JSON), content_type=JSON)
        waiting = len(queue)
        for _ in range(20):  # turns of the loop
            await asyncio.sleep(0)
        return joined[0], waiting

    assert fresh.loop.run_until_complete(visit()) == (200, 1)
    assert (len(queue), queue.pending_messages_per_session, queue.pending_event_ids_session) == (0, {}, {})


def test_too_many_sessions_that_do_not_listen_are_refused(fresh, monkeypatch):
    monkeypatch.setattr(listeners, "MAX_UNHEARD", 2)
    answers = [
        fresh.request("POST", f"{API}/queue/join", json.dumps(event(session=name)).encode(), content_type=JSON)
        for name in "abc"
    ]
    assert [status for status, _ in answers] == [200, 200, 503]
    assert "nobody listens to" in answers[-1][1]
