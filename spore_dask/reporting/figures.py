"""The figures of the report, made with Bokeh, as JSON that its library in the page draws.

Pure: arrays in, text out. Colours that depend on the theme are named in the tags of models, as
"property=variable of the style sheet"; the page fills them in.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from bokeh.embed import json_item
from bokeh.models import (
    BoxZoomTool,
    ColumnDataSource,
    HoverTool,
    InlineStyleSheet,
    LogAxis,
    Model,
    PanTool,
    Range1d,
    ResetTool,
    SaveTool,
    Span,
    WheelZoomTool,
)
from bokeh.plotting import figure
from numpy.typing import NDArray

from spore_dask.clusters import NOISE
from spore_dask.reporting.colors import NOISE_COLOR, PALETTE, color_of
from spore_dask.reporting.distances import Mark, Reach
from spore_dask.reporting.facts import provenance_text
from spore_dask.reporting.maps import Map

FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"
TOOLBAR_STYLE = ".bk-divider { background-color: var(--grid) !important; }"
N_BARS = 80
"""Clusters up to which each has a bar."""
FEWEST_BARS = 8
"""Clusters that there is room for at least."""
N_RANKS = 1500
"""Clusters whose sizes are drawn at most."""
FEW_DOTS = 3000
"""Dots up to which they are drawn larger."""
LOG_RATIO = 20
"""Largest size over the smallest from which on the scale is logarithmic."""


def draw_points(drawn: Map) -> Any:
    """Return the map: a picture of many points, and dots that can be pointed at."""
    left, right, bottom, top = drawn.view
    plot = _new_figure(
        height=620, x_range=Range1d(left, right), y_range=Range1d(bottom, top), name="map"
    )
    if drawn.picture is not None:
        address = "data:image/png;base64," + base64.b64encode(drawn.picture).decode()
        size = {"w": right - left, "h": top - bottom, "anchor": "bottom_left"}
        plot.image_url(url=[address], x=left, y=bottom, **size, name="picture")
    colors = np.array([*PALETTE, NOISE_COLOR])
    places = np.append(drawn.colors, len(PALETTE))[drawn.labels]
    source = ColumnDataSource(
        {
            "x": drawn.x,
            "y": drawn.y,
            "row": drawn.rows.astype(np.float64),  # exact, and known to browsers
            "cluster": _words(
                drawn.labels, lambda label: "noise" if label == NOISE else f"{label}"
            ),
            "provenance": _words(drawn.provenance, provenance_text),
            "color": colors[places].tolist(),
        }
    )
    plot.scatter(
        "x",
        "y",
        source=source,
        size=4 if len(drawn.x) > FEW_DOTS else 6,
        color="color",
        fill_alpha=0.0 if drawn.picture is not None else 0.85,
        line_alpha=0,
        name="dots",
    )
    near = plot.scatter("x", "y", source=source, size=12, alpha=0, name="near")
    hover = HoverTool(
        renderers=[near],
        limit=1,
        tooltips=[("row", "@row{0,0}"), ("cluster", "@cluster"), ("from", "@provenance")],
    )
    wheel = WheelZoomTool(modifiers="ctrl")
    plot.add_tools(PanTool(), wheel, BoxZoomTool(), ResetTool(), SaveTool(), hover)
    plot.toolbar.active_scroll = wheel
    _name_axes(plot, *drawn.axes)
    if drawn.axes[1] == "at random":
        plot.yaxis.visible = False
    return plot


def _words(values: NDArray[np.integer], say: Any) -> list[str]:
    """Return a word for each of some whole numbers."""
    known, places = np.unique(values, return_inverse=True)
    words = [say(value) for value in known.tolist()]
    return [words[place] for place in places.tolist()]


def draw_sizes(sizes: NDArray[np.int64], colors: NDArray[np.uint8]) -> Any:
    """Return the sizes of the clusters, the largest first."""
    order = np.argsort(-sizes, kind="stable")
    n_clusters, few = len(sizes), len(sizes) <= N_BARS
    ranks = np.arange(n_clusters)
    if n_clusters > N_RANKS:
        ranks = np.unique(np.geomspace(1, n_clusters, N_RANKS).astype(np.int64)) - 1
    labels = order[ranks]
    logarithmic = bool(sizes.max() > LOG_RATIO * sizes.min())
    bottom = float(sizes.min()) / 1.6 if logarithmic else 0.0
    top = float(sizes.max()) * (1.3 if logarithmic else 1.05)
    plot = _new_figure(
        height=400,
        x_axis_type="linear" if few else "log",
        y_axis_type="log" if logarithmic else "linear",
        y_range=Range1d(bottom, top),
        name="sizes",
    )
    source = ColumnDataSource(
        {
            "rank": (ranks + 1).astype(np.float64),
            "size": sizes[labels].astype(np.float64),
            "label": labels.astype(np.float64),
            "color": [color_of(int(label), colors) for label in labels],
        }
    )
    if few:
        made = plot.vbar(
            "rank", top="size", bottom=bottom, width=0.8, color="color", source=source, line_width=0
        )
        plot.x_range = Range1d(0.4, max(FEWEST_BARS, n_clusters) + 0.6)
        plot.xaxis.ticker.min_interval = 1
    else:
        made = plot.scatter("rank", "size", color="color", size=6, source=source, alpha=0.9)
    tips = [("cluster", "@label{0,0}"), ("points", "@size{0,0}"), ("rank", "@rank{0,0}")]
    plot.add_tools(HoverTool(renderers=[made], limit=1, tooltips=tips))
    _name_axes(plot, "clusters, the largest first", "points")
    _write_out(plot)
    plot.xgrid.visible = False
    return plot


def draw_reach(reach: Reach, marks: list[Mark], rank: int) -> Any:
    """Return the distribution of distances to a neighbour, with the thresholds in it."""
    values = [mark.value for mark in marks]
    low, high = min([reach.edges[0], *values]), max([reach.edges[-1], *values])
    plot = _new_figure(
        height=320,
        x_axis_type="log",
        x_range=Range1d(low / 1.05, high * 1.05),
        y_range=Range1d(0, max(1.0, 1.08 * float(reach.counts.max()))),
        name="reach",
    )
    source = ColumnDataSource(
        {
            "left": reach.edges[:-1],
            "right": reach.edges[1:],
            "count": reach.counts.astype(np.float64),
        }
    )
    bars = plot.quad(
        left="left", right="right", top="count", bottom=0, source=source, line_width=0, alpha=0.55
    )
    _paint(bars.glyph, fill_color="accent")
    tips = [("distance", "@left{0.0000e+0} to @right{0.0000e+0}"), ("points", "@count{0,0}")]
    plot.add_tools(HoverTool(renderers=[bars], limit=1, tooltips=tips))
    for mark in marks:
        line = Span(location=mark.value, dimension="height", line_width=2)
        line.line_dash = "dashed" if mark.name == "mean" else "solid"
        _paint(line, line_color=mark.color)
        plot.add_layout(line)
    _name_axes(plot, f"distance to neighbour {rank}", "points")
    _write_out(plot)
    return plot


def _new_figure(**options: Any) -> Any:
    """Return an empty figure without colours of its own."""
    plot = figure(sizing_mode="stretch_width", tools="", min_border=0, **options)
    plot.toolbar.logo = None
    plot.toolbar.stylesheets = [InlineStyleSheet(css=TOOLBAR_STYLE)]
    if options["name"] != "map":
        plot.toolbar_location = None
    plot.background_fill_color = plot.border_fill_color = plot.outline_line_color = None
    for grid in plot.grid:
        _paint(grid, grid_line_color="grid")
    for axis in plot.axis:
        axis.axis_label_text_font = axis.major_label_text_font = FONT
        axis.axis_label_text_font_style = "normal"
        axis.axis_label_text_font_size = axis.major_label_text_font_size = "12px"
        axis.minor_tick_line_color = None
        axis.major_tick_in = 0
        _paint(
            axis,
            axis_line_color="line",
            major_tick_line_color="line",
            major_label_text_color="muted",
            axis_label_text_color="muted",
        )
    return plot


def _paint(model: Model, **colors: str) -> None:
    """Say which variables of the style sheet some properties of a model take."""
    model.tags = [f"{name}={variable}" for name, variable in colors.items()]


def _name_axes(plot: Any, x: str, y: str) -> None:
    plot.xaxis.axis_label, plot.yaxis.axis_label = x, y


def _write_out(plot: Any) -> None:
    """Write numbers of points in full."""
    for axis in plot.yaxis:
        if not isinstance(axis, LogAxis):
            axis.formatter.use_scientific = False


def figure_items(figures: dict[str, Any]) -> list[Any]:
    """Return what Bokeh's library draws each figure from, into the element of its name.

    Bokeh names models by a counter, or at random: they are renamed in order, so that the same
    figures are the same text.
    """
    names: dict[str, str] = {}
    return [_renamed(json_item(plot, name), names) for name, plot in figures.items()]


def _renamed(value: Any, names: dict[str, str]) -> Any:
    """Return JSON with other identifiers."""
    if isinstance(value, dict):
        return {
            key: names.setdefault(part, f"m{len(names)}")
            if key in ("id", "root_id") and isinstance(part, str)
            else _renamed(part, names)
            for key, part in value.items()
        }
    return [_renamed(part, names) for part in value] if isinstance(value, list) else value
