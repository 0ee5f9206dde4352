"""Names the packages and builds the native module; a machine without a C++ compiler still gets everything else."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from setuptools import find_packages, setup
from setuptools.command.build_ext import build_ext

WITHOUT = (
    "ftc is installed without its native kernels, so models cannot run on the CPU: no C++ compiler was found; "
    "install g++ or clang++ (C++17) and install ftc again."
)


def compiler() -> str | None:
    """The C++ compiler that the build would call, or None when there is none."""
    command = shlex.split(os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++")
    programs = [shutil.which(word) for word in command if not word.startswith("-")]
    return programs[-1] if programs and all(programs) else None


class build_native(build_ext):
    """Always rebuilds, since nobody installs without a change; does nothing but say so where there is no compiler.

    A compiler that fails fails the installation: what it says must be read.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.force = True

    def run(self) -> None:
        if compiler() is None:
            print(f"warning: {WITHOUT}", file=sys.stderr)
        else:
            super().run()

    def build_extensions(self) -> None:
        """Compiles the sources side by side: a first installation waits for this longer than for most packages."""
        one_after_another = self.compiler.compile

        def side_by_side(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                parts = pool.map(lambda source: one_after_another([source], **options), sources)
                return [name for part in parts for name in part]

        self.compiler.compile = side_by_side
        super().build_extensions()

    def get_outputs(self) -> list[str]:
        return [path for path in super().get_outputs() if os.path.exists(path)]


setup(
    packages=[*find_packages(include=["ftc", "ftc.*"]), "ftc_models"],
    package_dir={"ftc_models": "models"},
    cffi_modules=["native/build.py:ffi"],
    cmdclass={"build_ext": build_native},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
