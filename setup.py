"""The compiled extensions; everything else about the package is in pyproject.toml.

WHEELSCHED_CHECKED=1 builds with bounds and overflow checks and light optimisation, for tests.
"""
import os

from Cython.Build import cythonize
from setuptools import Extension, setup

CHECKED = os.environ.get("WHEELSCHED_CHECKED") == "1"
NAMES = ["_cron", "_forecast", "_jobs", "_ready", "_rows", "_runrows", "_runs", "_runturns", "_wheel"]

extensions = [
    Extension(
        f"wheelsched.{name}",
        [f"wheelsched/{name}.pyx"],
        extra_compile_args=["-O1", "-g"] if CHECKED else ["-O3"],
    )
    for name in NAMES
    if os.path.exists(f"wheelsched/{name}.pyx")  # noqa: PTH110
]

setup(
    options={"build_ext": {"parallel": os.cpu_count()}},
    ext_modules=cythonize(
        extensions,
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
