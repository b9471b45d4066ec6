"""Every `tensorcom pcr` tool on a set behind a web server: the same output, and few bytes read."""

from __future__ import annotations

import json

import pytest
from jpeg_helpers import picture, saved
from pcr_helpers import cut, make_set

from tensorcom.cli.pcr import main
from tensorcom.testing.http_ranges import RangeServer

COMMANDS = {
    "info": ["--json"],
    "info as text": ["--classes"],
    "ls": ["-k", "3"],
    "ls of records": ["--records", "--json"],
    "verify": ["--decode"],
    "fidelity": ["-n", "3"],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    images = [saved(picture("RGB", 165 + i, 170, seed=i)) for i in range(5)]
    return make_set(tmp_path_factory.mktemp("set") / "set", images)


@pytest.fixture
def server(made):
    with RangeServer(made.root) as started:
        yield started


def run(capsysbinary, *args):
    code = main([str(arg) for arg in args])
    found = capsysbinary.readouterr()
    assert found.err == b"" or code
    return code, found.out


@pytest.mark.parametrize("name", COMMANDS)
def test_tools_say_the_same_of_a_url(capsysbinary, made, server, name):
    command, options = name.split()[0], COMMANDS[name]
    code, here = run(capsysbinary, command, made.root, *options)
    assert code == 0
    code, there = run(capsysbinary, command, server.url, *options)
    assert code == 0
    assert there.replace(server.url.encode(), str(made.root).encode()) == here


def test_cat_reads_the_bytes_of_one_image(capsysbinary, made, server):
    assert run(capsysbinary, "cat", server.url, 3, "-k", 2) == (0, made.jpeg(3, 2))
    records = [request for request in server.requests if request.path.endswith(".pcr")]
    assert sum(request.sent_bytes for request in records) <= len(made.jpeg(3, 2)) + 6


def test_extract_reads_each_prefix_once(capsysbinary, made, server, tmp_path):
    code, _ = run(capsysbinary, "extract", server.url, tmp_path / "out", "-k", 4, "-q")
    assert code == 0
    for sample, name in enumerate(made.names):
        assert (tmp_path / "out" / name).read_bytes() == made.jpeg(sample, 4)
    records = [request for request in server.requests if request.path.endswith(".pcr")]
    assert [request.method for request in records] == ["GET"] * 2


def test_verify_of_a_url_finds_damage_and_cannot_list(capsysbinary, tmp_path):
    made = make_set(tmp_path / "own")
    cut(made.file(2))
    made.file(0).unlink()
    (made.root / "other.txt").write_text("")
    with RangeServer(made.root) as server:
        code, out = run(capsysbinary, "verify", server.url, "--json")
    assert code == 1
    values = json.loads(out)
    assert [problem["path"] for problem in values["problems"]] == ["PCR_0.pcr", "PCR_2.pcr"]
    assert (values["others"], values["is_listed"]) == ({}, False)


def test_what_is_not_there_is_one_line(capsysbinary, server):
    assert main(["info", f"{server.url}/absent"]) == 1
    (line,) = capsysbinary.readouterr().err.decode().splitlines()
    assert "holds no set of records" in line
