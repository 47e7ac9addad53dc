"""The alarms of recipes.md: what a mail and a chat are told."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import wheelsched
from wheelsched import Http
from wheelsched.executor.causes import as_json, environment, in_body, texts

RECIPES = Path(wheelsched.__file__).with_name("manual") / "recipes.md"
DEAD = {"reason": "dead", "job": "a/b", "run_id": "ab" * 16, "output": None, "error": {"type": "Boom", "message": '"ü"\n.\nTo: x'}}
MISSED = {"reason": "missed", "job": "a/b", "jobs": 1, "count": 2, "from": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:01:00Z"}


def block(kind):
    mark = r"<!-- run by: tests/manual/test_told\.py -->"
    found = re.search(rf"{mark}\n\n```{kind}\n(.*?)```", RECIPES.read_text(encoding="utf-8"), re.DOTALL)
    return found[1]


def test_n_a3_the_mail_of_the_recipe(tmp_path):
    script = tmp_path / "tell-by-mail"
    script.write_text(block("bash"))
    for name, text in (("sendmail", f"cat > {tmp_path}/mail"), ("wheelsched", 'echo "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    mails = []
    for cause in (DEAD, MISSED, None):
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **environment(cause)}
        subprocess.run(["sh", script, "ops@example.org"], env=env, input=as_json(cause) or b"", check=True)
        mails.append((tmp_path / "mail").read_text().partition("\n\n"))
    heads = [head.splitlines()[:2] for head, _, _ in mails]
    assert heads == [["To: ops@example.org", f"Subject: [wheelsched] {what}"] for what in ("dead: a/b", "missed: a/b", "test: by hand")]
    assert mails[0][2] == f'Boom: "ü"\n.\nTo: x\n\n{json.dumps(DEAD)}\nrun logs {"ab" * 16}\n'
    assert mails[1][2] == f"\n\n{json.dumps(MISSED)}\n"
    assert mails[2][2].strip() == ""


def test_n_a3_the_chat_of_the_recipe():
    words = shlex.split(block("sh").replace("\\\n", " "))
    args, kwargs = (json.loads(words[words.index(flag) + 1]) for flag in ("--args", "--kwargs"))
    call = Http(*args, **kwargs)
    assert words[words.index("--redact") + 1] == "url"
    [section] = json.loads(in_body(json.dumps(call.kwargs["json"]).encode(), None, texts(DEAD)))["blocks"]
    assert section["text"] == {"type": "plain_text", "text": f'dead: a/b\nBoom: "ü"\n.\nTo: x\nrun {"ab" * 16}'}
