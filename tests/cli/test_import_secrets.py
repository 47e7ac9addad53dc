"""Secrets in what importers read: redacted in the jobs, printed to nobody; files of variables are carried over as files."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tests.rigs.places import TESTS
from wheelsched.cli.importers.secrets import looks_secret
from wheelsched.cli.root import cli

SECRET = "s3cr3t"
SYSTEMD = TESTS / "import_cases" / "systemd"
CRONTAB = f"""DB_URL=postgres://app:{SECRET}@db/x
API_TOKEN={SECRET}2
LOG_DIR=/var/log
PIN={SECRET}3
0 4 * * * backup --all
"""


def dry(*args, text=None):
    done = CliRunner().invoke(cli, ["job", "import", *args, "--dry-run"], input=text, catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("form", ["table", "json"])
def test_n_b8_what_looks_like_a_secret_is_redacted_and_not_printed(form):
    code, out, said = dry("crontab", "-", "--tz", "UTC", "--redact", "PIN", "-o", form, text=CRONTAB)
    assert code == 0
    assert SECRET not in out + said
    assert "/var/log" in out
    assert "API_TOKEN, DB_URL: taken for secrets" in said
    if form == "json":
        (job,) = [row for row in json.loads(out) if row.get("job")]
        assert job["policies"]["redact"] == ["API_TOKEN", "DB_URL", "PIN"]
        assert job["env"] == {"DB_URL": "[redacted]", "API_TOKEN": "[redacted]", "LOG_DIR": "/var/log", "PIN": "[redacted]"}


def test_n_b8_a_secret_that_was_put_into_the_arguments_hides_them(tmp_path):
    (tmp_path / "x.timer").write_text("[Timer]\nOnCalendar=daily\n")
    (tmp_path / "x.service").write_text(f"[Service]\nEnvironment=DB_PASSWORD={SECRET}\nExecStart=/bin/dump --password ${{DB_PASSWORD}}\n")
    code, out, said = dry("systemd", str(tmp_path / "x.timer"), "-o", "json")
    assert code == 0, said
    assert SECRET not in out + said
    (job,) = [row for row in json.loads(out) if row.get("job")]
    assert job["policies"]["redact"] == ["DB_PASSWORD", "argv"]


def test_n_b8_files_of_variables_stay_files():
    code, out, said = dry("systemd", str(SYSTEMD / "backup.timer"), "-o", "json")
    assert code == 0, said
    (job,) = [row for row in json.loads(out) if row.get("job")]
    assert job["env_file"] == ["-/etc/default/backup"]
    assert "/etc/default/backup is read by the worker at each run; not anybody may read it" in " ".join(job["notes"])


@pytest.mark.parametrize(("name", "value", "secret"), [
    ("PASSWORD", "x", True), ("PGPASSWORD", "x", True), ("MYSQL_PWD", "x", True), ("SECRET_KEY", "x", True), ("GITHUB_TOKEN", "x", True),
    ("AWS_SECRET_ACCESS_KEY", "x", True), ("API_KEY", "x", True), ("URL", "redis://:pw@host/0", True), ("URL", "https://host/a@b", False),
    ("PATH", "/bin", False), ("PWD", "/x", False), ("PASSWORD_FILE", "/run/secrets/db", False), ("COMPASS", "north", False), ("HOME", "/root", False),
    ("TOKEN", "", False), ("MAILTO", "a@example.org", False),
])
def test_n_b8_what_looks_like_a_secret(name, value, secret):
    assert looks_secret(name, value) is secret
