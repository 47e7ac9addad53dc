"""Files with variables for commands: read at each run, by those alone who may, and kept nowhere."""

from __future__ import annotations

import os

import pytest

from tests.rigs.executor import Scripted
from wheelsched import Command, PayloadError
from wheelsched.executor.env_files import BYTES_MAX, EnvFileRefused, variables
from wheelsched.model.nouns import Outcome

SECRET = "s3cr3t-value"


@pytest.fixture
def end(tmp_path):
    made = Scripted(tmp_path, allow_commands=True)
    yield made
    made.close()


def write(path, text, mode=0o600):
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def run(end, *files, env=None):
    argv = ["sh", "-c", 'echo "$A|$B|$C"']
    return end.finish(end.give("command", argv, env=env or {}, env_file=list(files)))[0]


def test_n_b8_the_file_is_read_at_each_run(end, tmp_path):
    file = write(tmp_path / "env", "A=1\nB=2\n")
    assert run(end, file)[3]["stdout"] == b"1|2|\n"
    write(tmp_path / "env", "A=3\n")
    assert run(end, file)[3]["stdout"] == b"3||\n"
    other = write(tmp_path / "other", "A=4\nC=5\n")
    assert run(end, file, other)[3]["stdout"] == b"4||5\n", "the later one wins"
    assert run(end, file, env={"A": "own"})[3]["stdout"] == b"own||\n", "the job's env wins"
    assert run(end, f"-{tmp_path}/none")[3]["stdout"] == b"||\n", "it need not be there"


@pytest.mark.parametrize(("text", "found"), [
    ("A=1", {"A": "1"}), ("\n# x\n; y\n  A = 1\n", None), ("export A=b c \nB=\n", {"A": "b c", "B": ""}),
    ('A="x \\"y\\" \\\\ \\$z \\n"', {"A": 'x "y" \\ $z \\n'}), ("A='x \"y\" $z'", {"A": 'x "y" $z'}), ("A=a=b#c", {"A": "a=b#c"}),
    ('A="open', None), ("A='x' y", None), ("no equals", None), ("1A=x", None), ("A=\u00fc\r\n", {"A": "\u00fc"}), ("A=x\0y", None),
])
def test_n_b8_what_a_line_says(tmp_path, text, found):
    file = write(tmp_path / "env", text)
    if found is None:
        with pytest.raises(EnvFileRefused, match=r"line \d is no NAME=value"):
            variables([file], {os.geteuid()})
    else:
        assert variables([file], {os.geteuid()}) == found


@pytest.mark.parametrize(("mode", "why"), [(0o644, "anybody may read it"), (0o620, "others may write in it"), (0o602, "others may write in it")])
def test_n_b8_who_else_may_read_or_write_it(end, tmp_path, mode, why):
    file = write(tmp_path / "env", f"A={SECRET}\n", mode)
    outcome, *_, result = run(end, file)
    assert outcome == Outcome.FAILED
    assert result["retry"] is False, "no further attempt mends it"
    assert why in result["message"]
    assert SECRET not in str(result)
    assert run(end, write(tmp_path / "group", "A=1\n", 0o640))[3]["stdout"] == b"1||\n"


def test_n_b8_what_is_no_such_file(tmp_path):
    mine = {os.geteuid()}
    with pytest.raises(EnvFileRefused, match="it is not there"):
        variables([f"{tmp_path}/none"], mine)
    with pytest.raises(EnvFileRefused, match="it is no file"):
        variables([str(tmp_path)], mine)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(EnvFileRefused, match="it is no file"):
        variables([str(tmp_path / "pipe")], mine)
    with pytest.raises(EnvFileRefused, match="more than"):
        variables([write(tmp_path / "large", "A=" + "x" * BYTES_MAX)], mine)
    (tmp_path / "bytes").write_bytes(b"A=\xff\n")
    (tmp_path / "bytes").chmod(0o600)
    with pytest.raises(EnvFileRefused, match="no text in UTF-8"):
        variables([str(tmp_path / "bytes")], mine)
    with pytest.raises(EnvFileRefused, match="line 2") as refused:
        variables([write(tmp_path / "bad", f"A=1\n{SECRET}\n")], mine)
    assert SECRET not in str(refused.value)
    if os.geteuid() == 0:
        os.chown(write(tmp_path / "theirs", "A=1"), 65_534, -1)
        with pytest.raises(EnvFileRefused, match="belongs to the user 65534"):
            variables([str(tmp_path / "theirs")], mine)
        assert variables([str(tmp_path / "theirs")], {65_534}) == {"A": "1"}


def test_n_b8_a_definition_has_the_path_alone(tmp_path):
    call = Command(["true"], env_file="/etc/app.env")
    assert call.kwargs["env_file"] == ["/etc/app.env"]
    assert "env_file" not in Command(["true"]).kwargs, "a definition stays what it was"
    for wrong in ("app.env", ["/a", "b"], "", "/a\0b", [3]):
        with pytest.raises(PayloadError, match="absolute path"):
            Command(["true"], env_file=wrong or [""])
