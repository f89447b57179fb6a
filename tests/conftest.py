"""What all tests share: Hypothesis settings and the data that lies beside the project."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# numba's cache is not safe to share, and does not tell whether kernels check their bounds.
own = [os.environ.get("PYTEST_XDIST_WORKER"), os.environ.get("NUMBA_BOUNDSCHECK") and "bounds"]
if any(own):
    name = "-".join(["numba", *filter(None, own)])
    os.environ["NUMBA_CACHE_DIR"] = str(Path(__file__).parents[1] / ".pytest_cache" / name)

settings.register_profile(
    "default",
    deadline=None,
    max_examples=int(os.environ.get("SPORE_EXAMPLES", "150")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("default")

GOLDEN = Path(__file__).parents[2] / "shared" / "golden"


def golden_files() -> list[Path]:
    """Return the files with labels that must match exactly, if they are there."""
    return sorted(GOLDEN.glob("*.npz"))


@pytest.fixture(params=golden_files() or [None], ids=lambda path: path.stem if path else "absent")
def golden(request):
    """One golden dataset: a dictionary of its arrays, with `configs` decoded and renamed."""
    if request.param is None:
        pytest.skip("the golden labels are not beside the project")
    with np.load(request.param) as file:
        data = {name: file[name] for name in file.files}
    data["configs"] = json.loads(str(data["configs"]))
    for config in data["configs"]:
        if "shuffle_seed" in config["params"]:
            config["params"]["seed"] = config["params"].pop("shuffle_seed")
    return data
