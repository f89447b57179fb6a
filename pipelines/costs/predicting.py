"""What a fitted model says of fits that nobody has run: time, disk, memory and traffic.

Pure: memory and disk come from `spore_dask.memory`, as in the plan of a fit.
"""

from __future__ import annotations

import dataclasses

from pipelines.costs.fitting import Model, Seconds
from spore_dask import memory, plan
from spore_dask.costs import Size, loads, probed
from spore_dask.memory import PAGE_ROWS, Chunks, InputShape, Shape
from spore_dask.params import Params, ResolvedParams

ITEMSIZE = 4
"""Bytes of a coordinate: float32."""
EXACT_COLUMNS = 8
"""Columns up to which the search is exact here."""

CACHE_NBYTES = 1 << 30
"""What the coordinator has for rows, beside what it needs."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A fit to be predicted."""

    n_points: int
    n_columns: int
    n_workers: int
    expansion_neighbors: int | None = None
    """As in `fit`."""

    @property
    def params(self) -> ResolvedParams:
        """The neighbours that are asked for."""
        return Params(expansion_neighbors=self.expansion_neighbors).resolve(self.n_points)

    @property
    def exact(self) -> bool:
        """Whether the search is exact."""
        return self.n_columns <= EXACT_COLUMNS

    @property
    def pages(self) -> bool:
        """Whether the coordinator's cache is too small for the graph."""
        return self.n_points * self.shape.row_nbytes > CACHE_NBYTES

    @property
    def shape(self) -> Shape:
        """The sizes of the graph; rows of fragments come later, as they are few in such data."""
        params = self.params
        head = max(params.density_neighbors, params.expansion_neighbors)
        return memory.shape_of(
            self.n_points, self.n_columns, ITEMSIZE, head, longest_k=max(head, params.k)
        )

    @property
    def input_shape(self) -> InputShape:
        """The sizes of input in the chunks that `import` writes."""
        row_nbytes = self.n_columns * ITEMSIZE
        chunk_rows = memory.imported_rows(self.n_points, row_nbytes)
        chunks = Chunks.of((self.n_points, self.n_columns), ITEMSIZE, (chunk_rows, self.n_columns))
        return memory.input_shape_of(
            self.n_points, row_nbytes, chunks.rows, chunks.decoding_nbytes, self.shape.sample_size
        )

    def size(self, model: Model) -> Size:
        """Return how large it is, if the data is like that which was measured."""
        data, n_points = model.data[self.n_columns], self.n_points
        if self.exact:
            compared = data.compared.at(n_points)
        else:
            assert data.n_probes is not None
            assert data.n_rounds is not None
            compared = probed(n_points, self.n_columns, data.n_probes, data.n_rounds)
        return Size(
            self.shape,
            -(-n_points // self.input_shape.rows_per_task),
            compared,
            round(data.fragment_share * n_points),
            data.fragment_compared.at(n_points),
            data.n_rounds,
            round(data.pages_again * n_points / PAGE_ROWS) if self.pages else 0,
        )


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a fit would take."""

    case: Case
    seconds: Seconds
    """Of each stage, and of what is between them."""
    worker_nbytes: int
    """Projected peak of a worker, but for its cache."""
    coordinator_nbytes: int
    """Projected peak of the coordinator, but for its cache."""
    disk_nbytes: int
    """The most that is on disk at a time; rows of fragments are beside."""
    traffic_nbytes: int
    """What all stages read and write together."""
    n_tasks: int
    n_pieces: int
    """Parts of files that exchanges read."""

    @property
    def whole_seconds(self) -> float:
        """The time of the whole."""
        return sum(self.seconds.values())


def predict(model: Model, case: Case) -> Prediction:
    """Say what a fit would take."""
    size, needs = case.size(model), memory_of(case)
    todo = loads(size).values()
    return Prediction(
        case,
        model.seconds(size, case.n_workers),
        max(nbytes for stage, nbytes in needs.items() if stage not in ("driver", "expand")),
        max(needs["driver"], needs["expand"]),
        disk_of(case),
        sum(traffic_of(size).values()),
        sum(load.n_tasks for load in todo),
        sum(load.n_pieces for load in todo),
    )


def memory_of(case: Case) -> dict[str, int]:
    """Return the projected peak of a process in each stage, as the plan of a fit has it."""
    shape, data = case.shape, case.input_shape
    # A plan does not know yet whether the rows of fragments will be searched later.
    by_cells = case.n_columns <= plan.FEW_COLUMNS
    largest = shape if by_cells else dataclasses.replace(shape, k=shape.longest_k)
    searches = [memory.neighbors_nbytes(shape), memory.neighbors_nbytes(largest)]
    in_range = memory.most_in_range(largest)
    later = [memory.fragments_nbytes(shape, shape.longest_k, in_range)]
    if not case.exact:
        extended = memory.extend_nbytes(shape)
        searches += [memory.approximate_nbytes(largest), extended]
        later.append(extended)
    driver = memory.driver_nbytes(data, shape, not case.exact)
    return {
        "driver": max(driver, memory.density_driver_nbytes(largest)),
        "scan": memory.scan_nbytes(data),
        "exchange": memory.exchange_nbytes(data, shape),
        "partition": memory.gather_nbytes(shape),
        "neighbors": max(searches),
        "density": memory.density_nbytes(largest),
        "expand": memory.coordinator_nbytes(largest),
        "fragments": max(later),
    }


def disk_of(case: Case) -> int:
    """Return the most that a fit from Zarr has on disk, as its plan has it: rows may be long."""
    shape = case.shape
    if not case.exact:
        shape = dataclasses.replace(shape, k=shape.longest_k)
    order = memory.order_disk_nbytes(shape) + shape.n_points * 3 * memory.LABEL_NBYTES
    return memory.disk_nbytes(shape, 0, not case.exact) + order


def traffic_of(size: Size) -> dict[str, int]:
    """Return the bytes that each stage reads and writes, if every cache holds what is near.

    Bytes of files that are read in small pieces are whole blocks of rows, which is beside this.
    """
    shape, n_points = size.shape, size.shape.n_points
    values = n_points * shape.n_columns * shape.itemsize
    points = n_points * shape.point_nbytes
    graph = n_points * (shape.row_nbytes + shape.number_nbytes)
    distances = n_points * (shape.k + 1) * shape.itemsize
    lists = n_points * (shape.k + memory.LIST_MARGIN) * (shape.itemsize + 5)
    rounds = 0 if size.n_rounds is None else size.n_rounds
    search = 2 * points if size.n_rounds is None else (8 + 9 * rounds) * lists
    fragments = size.n_fragments * shape.entries_nbytes(shape.longest_k)
    return {
        "scan": values,
        "points": values + 3 * points,
        "graph": points + graph + search,
        "density": distances + 2 * points + 2 * n_points * shape.key_nbytes + 28 * n_points,
        "expand": max(graph, size.n_pages * PAGE_ROWS * shape.row_nbytes) + 4 * n_points,
        "fragments": 3 * fragments,
        "reassign": fragments + 6 * n_points,
        "publish": 16 * n_points,
    }
