"""Run benchmarks: `python -m benchmarks [name] [--smoke] [-o file.json]`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import platform
import sys
from pathlib import Path
from typing import Any


def discover() -> dict[str, Any]:
    """The benchmark modules of this package by name."""
    found = {}
    for info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if info.name.startswith(("_", "test_")):
            continue
        module = importlib.import_module(f"benchmarks.{info.name}")
        if hasattr(module, "NAME"):
            found[module.NAME] = module
    return found


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        model = models[0] if models else model
    return {
        "cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), "system": f"{platform.system()} {platform.release()}",
        "load": [round(x, 2) for x in os.getloadavg()],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as aligned text."""
    lines = [("", "value", "unit", "n", "ratio to ours")]
    for row in rows:
        ratio = f"{row['ratio']:,.1f}" if "ratio" in row else ""
        lines.append((row["name"], f"{row['value']:,.3f}", row["unit"], f"{row['n']:,}", ratio))
    widths = [max(len(line[i]) for line in lines) for i in range(5)]
    return "\n".join(
        f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:<{widths[2]}}  {d:>{widths[3]}}  {e:>{widths[4]}}".rstrip() for a, b, c, d, e in lines
    )


def main(argv: list[str] | None = None) -> int:
    """Run one benchmark or all; 2 when the name is unknown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Benchmarks of wheelsched.")
    parser.add_argument("name", nargs="?", help="only this one")
    parser.add_argument("--smoke", action="store_true", help="small sizes: shows that it works, not how fast")
    parser.add_argument("-o", "--output", type=Path, help="write the results as JSON")
    options = parser.parse_args(argv)
    modules = discover()
    if options.name is not None and options.name not in modules:
        sys.stderr.write(f"no benchmark {options.name!r}; there are: {', '.join(sorted(modules))}\n")
        return 2
    about = machine()
    print(f"{about['cpu']}, {about['cores']} cores, Python {about['python']}, {about['system']}, load {about['load'][0]}")
    results = {}
    for name, module in sorted(modules.items()):
        if options.name in {None, name}:
            print(f"\n{name}: {module.DESCRIPTION}{' (smoke size: no measure of speed)' if options.smoke else ''}")
            results[name] = module.run(options.smoke)
            print(table(results[name]))
    if options.output is not None:
        options.output.write_text(json.dumps({"machine": about, "smoke": options.smoke, "results": results}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
