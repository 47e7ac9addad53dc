"""The compiled extensions; everything else about the package is in pyproject.toml.

WHEELSCHED_CHECKED=1 builds with bounds and overflow checks and light optimisation, for tests.
"""
import os

from Cython.Build import cythonize
from setuptools import Extension, setup

CHECKED = os.environ.get("WHEELSCHED_CHECKED") == "1"
# What memory views need is compiled once, in a module of its own, and not into each extension: half the time of a build.
SHARED = "wheelsched._cyutility"
FLAGS = ["-O1", "-g0"] if CHECKED else ["-O3", "-g0"]
LINK = ["-Wl,-s"]  # no symbols that nobody links to
NAMES = [
    "reads._forecast",
    "schedules._cron",
    "tables._jobs",
    "tables._ready",
    "tables._rows",
    "tables._runindex",
    "tables._runrows",
    "tables._runs",
    "tables._runturns",
    "wheel._wheel",
]

extensions = [
    Extension(
        f"wheelsched.{name}",
        [f"wheelsched/{name.replace('.', '/')}.pyx"],
        extra_compile_args=FLAGS,
        extra_link_args=LINK,
    )
    for name in NAMES
]
extensions.append(Extension(SHARED, ["wheelsched/_cyutility.c"], extra_compile_args=FLAGS, extra_link_args=LINK))

setup(
    options={"build_ext": {"parallel": os.cpu_count()}},
    ext_modules=cythonize(
        extensions,
        nthreads=os.cpu_count() or 1,
        shared_utility_qualified_name=SHARED,
        build_dir="build/checked" if CHECKED else "build/cython",
        compiler_directives={
            "language_level": 3,
            "boundscheck": CHECKED,
            "wraparound": False,
            "initializedcheck": CHECKED,
            "overflowcheck": False,
            "cdivision": True,
        },
    )
)
