"""What looks like a secret among the variables of imported jobs: their jobs redact it, and the import prints it to nobody."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from ...protocol.redact import MARK

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ...model.jobs import Job

_NAME: Final = re.compile(
    r"PASSW(?:OR)?D|PASSPHRASE|(?<![A-Z])PASS(?![A-Z])|PWD$|SECRET|TOKEN|CREDENTIAL|(?:API|ACCESS|PRIVATE)_?KEY|AUTH$|_DSN$", re.IGNORECASE
)
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@")
_LINE: Final = re.compile(r"\s*[\"']?([A-Za-z_][A-Za-z0-9_]*)[\"']?\s*=\s*(.*)")


def looks_secret(name: str, value: str) -> bool:
    """By its name, or because it is a URL with a password. A path says where one is, and not what it is."""
    if not value or name in ("PWD", "OLDPWD"):
        return False
    return bool(_URL.search(value)) or (_NAME.search(name) is not None and not value.startswith("/"))


def redacted(job: Job, more: Iterable[str]) -> list[str]:
    """The fields of a job that are to be redacted: those of its environment that look like secrets, and `more`."""
    call = job.call
    env = call.kwargs.get("env") or {}
    names = {name for name, value in env.items() if looks_secret(name, value)}
    argv = call.args[0] if call.task == "command" and call.args and isinstance(call.args[0], list) else []
    if any(env[name] in word for name in names for word in argv):  # a variable that was put in for its name
        names.add("argv")
    return sorted({*names, *more})


class Hider:
    """Hides the values of all variables that look like secrets, in whatever is shown of an import."""

    def __init__(self, lines: Iterable[tuple[str, Job | None]], more: Iterable[str]) -> None:
        """`lines`: what was read, each with the job that it made."""
        values: set[str] = set()
        wanted = {name.casefold() for name in more}
        for text, job in lines:
            pairs: list[tuple[str, str]] = []
            if job is not None:
                pairs += (job.call.kwargs.get("env") or {}).items()
            elif (found := _LINE.fullmatch(text)) is not None:
                pairs.append((found[1], found[2].strip().strip("\"'")))
            values |= {value for name, value in pairs if value and (looks_secret(name, value) or name.casefold() in wanted)}
        self._pattern = re.compile("|".join(re.escape(value) for value in sorted(values, key=len, reverse=True))) if values else None

    def text(self, text: str) -> str:
        """Without them."""
        return text if self._pattern is None else self._pattern.sub(MARK, text)

    def plain(self, value: Any) -> Any:
        """Plain data without them."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.plain(item) for key, item in value.items()}
        return [self.plain(item) for item in value] if isinstance(value, list) else value


def with_redact(policies: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """Policies with what is redacted of a job."""
    given = policies.get("redact") or ()
    names = redacted(job, [given] if isinstance(given, str) else given)
    return {**policies, "redact": names} if names else dict(policies)
