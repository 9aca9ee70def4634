"""Processes of our own: started, kept running, and ended. The servers are Python's; real ones: test_server.py."""

import os
import signal
import subprocess
import sys
import time

import pytest
from machine import wait_until

from llm_envs.errors import InvalidConfigError, MissingExtraError, ModelError
from llm_envs.policies import start_servers
from llm_envs.policies.vllm.launcher import ModelServers, _free_ports, _Server, is_healthy, last_error

HEALTHY = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def make_servers(tmp_path, n=1, code=HEALTHY, max_restarts=1):
    servers = [
        _Server(["-c", code, str(port)], dict(os.environ), tmp_path / f"{port}.log", f"http://127.0.0.1:{port}")
        for port in _free_ports(n)
    ]
    return ModelServers(servers, max_restarts)


def test_they_are_started_side_by_side_and_all_are_ended(tmp_path):
    group = make_servers(tmp_path, 2)
    group.start(120)
    assert len(set(group.urls)) == len(set(group.pids)) == 2
    assert all(map(is_healthy, group.urls))
    group.stop()
    group.stop()
    assert not any(map(is_healthy, group.urls))
    for pid in group.pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_no_log_is_written_through_a_link(tmp_path):
    group = make_servers(tmp_path, 1)
    (tmp_path / "precious").write_text("important")
    group.logs[0].symlink_to(tmp_path / "precious")
    with pytest.raises(ModelError, match=str(group.logs[0])):
        group.start(120)
    group.stop()
    assert (tmp_path / "precious").read_text() == "important"


def test_one_that_dies_is_started_again_at_the_same_place_so_many_times(tmp_path):
    group = make_servers(tmp_path, 1, max_restarts=1)
    group.start(120)
    (first,) = group.pids
    os.kill(first, signal.SIGKILL)
    assert wait_until(lambda: group.pids[0] != first and is_healthy(group.urls[0]))
    (second,) = group.pids
    os.kill(second, signal.SIGKILL)
    assert wait_until(lambda: not is_healthy(group.urls[0]))
    time.sleep(1.0)
    assert group.pids == (second,)
    group.stop()


def test_one_that_does_not_come_up_ends_the_start_with_its_own_last_error(tmp_path):
    group = make_servers(tmp_path, 1, code="print('loading', flush=True); raise ValueError('no such device: 7')")
    with pytest.raises(ModelError, match=r"ValueError: no such device: 7\n.*\.log\n"):
        group.start(120)
    group.stop()


def test_one_that_takes_too_long_ends_the_start(tmp_path):
    group = make_servers(tmp_path, 1, code="import time; print('loading', flush=True); time.sleep(600)")
    with pytest.raises(ModelError, match=r" 1 s.*: loading"):
        group.start(1.0)
    group.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(group.pids[0], 0)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_they_end_with_the_process_that_started_them_however_that_ends(tmp_path):
    code = (
        f"import sys, time; sys.path[:0] = {sys.path!r}\n"
        "from pathlib import Path\n"
        f"sys.path[:0] = [{os.path.dirname(__file__)!r}]\n"
        "from test_launcher import make_servers\n"
        f"group = make_servers(Path({str(tmp_path)!r})); group.start(120)\n"
        "print(group.urls[0], group.pids[0], flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    url, _ = parent.stdout.readline().split()
    assert is_healthy(url)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_until(lambda: not is_healthy(url))


def test_the_last_error_of_a_log_is_the_one_that_says_something(tmp_path):
    log = tmp_path / "log"
    log.write_text(
        "INFO 11-21 13:00:00 [x.py:1] fine\n"
        "(EngineCore pid=7) ERROR 11-21 13:30:00 [core.py:99] Traceback (most recent call last):\n"
        "(EngineCore pid=7) ERROR 11-21 13:30:00 [core.py:99] ValueError: No available memory for the cache blocks.\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert last_error(log) == "ValueError: No available memory for the cache blocks."
    log.write_text("one\ntwo\nthree\nfour\n")
    assert last_error(log) == "two\nthree\nfour"
    log.write_text("")
    assert last_error(log) == "it wrote nothing"
    log.write_text(
        "pydantic.ValidationError: 1 validation error for Config\n  Value error, too long\n\nDuring handling\n"
    )
    assert last_error(log) == "pydantic.ValidationError: 1 validation error for Config\nValue error, too long"
    assert last_error(tmp_path / "none") == "it wrote no log"


def test_servers_are_asked_for_properly():
    for settings in ({"n": 0}, {"n": 2, "devices": ["0"]}):
        with pytest.raises(InvalidConfigError, match="start_servers"), start_servers("m", **settings):
            pass


def test_servers_without_vllm_name_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"llm-envs\[vllm\]"), start_servers("m"):
        pass
