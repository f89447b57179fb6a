"""Labels that must match exactly; they lie beside the project, else these tests skip."""

import json

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from spore_dask import Params, cluster_graph
from spore_dask.search import neighbor_rows
from tests.conftest import golden_files
from tests.paper import SPORE


def test_graph_to_labels(golden):
    for config, labels in zip(golden["configs"], golden["labels"], strict=True):
        resolved = Params(**config["params"]).resolve(len(labels))
        for name in set(config) - {"params"}:
            assert getattr(resolved, name) == config[name]
        found = cluster_graph(
            golden["neighbors"], golden["distances"], golden["X"], **config["params"]
        )
        np.testing.assert_array_equal(found, labels)


def test_data_to_graph(golden):
    rows = neighbor_rows(golden["X"], golden["neighbors"].shape[1] - 1, "exact")
    np.testing.assert_array_equal(rows.neighbors, golden["neighbors"])
    np.testing.assert_array_equal(rows.distances, golden["distances"])


def test_data_to_labels(golden):
    for config, labels in zip(golden["configs"], golden["labels"], strict=True):
        found = SPORE(knn="exact", **config["params"]).fit(golden["X"])
        np.testing.assert_array_equal(found.labels_, labels)


def test_float32_input_agrees_with_float64():
    scores = []
    for path in golden_files():
        with np.load(path) as file:
            x, configs, labels = file["X"], json.loads(str(file["configs"])), file["labels"]
        for config, expected in zip(configs, labels, strict=True):
            params = config["params"]
            params |= {"seed": params.pop("shuffle_seed")} if "shuffle_seed" in params else {}
            found = SPORE(knn="exact", **params).fit(x.astype(np.float32)).labels_
            scores.append(adjusted_rand_score(expected, found))
    if not scores:
        pytest.skip("the golden labels are not beside the project")
    assert np.median(scores) == 1.0
    assert np.mean(np.array(scores) >= 0.99) >= 0.95
