"""What holds for every test: two threads, own caches, no network, a fixed seed, and the embedded model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# Before any test module imports torch, which reads these when it loads.
for _name in ("OMP_NUM_THREADS", "FTC_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, str(min(2, len(os.sched_getaffinity(0)))))
# Waiting threads sleep soon: where other processes want the CPUs, spinning ones cost 18 times the step itself.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"

# No deadline: a busy machine may take any time over one example. With CI set, the same examples are drawn each time.
hypothesis.settings.register_profile("ftc", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("ftc")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The artefact cache of this test run: never the user's, and empty at first."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FTC_CACHE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Random numbers of torch are the same in every run, whichever tests are chosen."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def demo() -> Path:
    """The checkpoint folder of the embedded model."""
    return ROOT / "models" / "demo"
