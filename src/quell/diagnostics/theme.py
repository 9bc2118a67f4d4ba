# SPDX-License-Identifier: Apache-2.0
"""What all figures and pages share: colours, style sheet, panels, legends and PNG files."""

import base64
import contextlib
import importlib.resources
import importlib.util
import io
import re
import warnings
from collections.abc import Iterator
from typing import Any

from quell.core.checks import check_name

THEMES = {"light": ("#ffffff", "#1a1a1a"), "dark": ("#16181d", "#e8e8e8")}
"""Colours of background and text."""

PALETTE = ("#D55E00", "#3D8FD1", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#8A8F98")
"""Okabe and Ito's colours, readable with the common forms of colour blindness and in both themes."""

LONGEST_NAME = 26
"""Number of letters of a name in a figure, at most."""

STYLE = (importlib.resources.files("quell.diagnostics") / "templates" / "base.css").read_text()
"""The style sheet that all pages share; it follows the reader's preference for a light or a dark theme."""


def check_matplotlib() -> None:
    """Refuse to draw without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError("Figures need matplotlib; try `pip install 'quell[plots]'`.")


@contextlib.contextmanager
def in_theme(theme: str) -> Iterator[None]:
    """Draw with the colours of a theme, `light` or `dark`."""
    import matplotlib

    background, foreground = THEMES[theme]
    coloured = ("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "text.color")
    settings: dict[Any, Any] = {
        "figure.facecolor": background,
        "axes.facecolor": background,
        "legend.framealpha": 0.0,
        **dict.fromkeys(coloured, foreground),
    }
    with matplotlib.rc_context(settings):
        yield


@contextlib.contextmanager
def panels(
    title: str, theme: str, *, columns: int = 1, width: float = 4.2, height: float = 3.1
) -> Iterator[tuple[Any, Any]]:
    """A figure and its panels in the colours of a theme; pyplot does not know it, so that it need not be closed."""
    check_name("`theme`", theme, THEMES)
    check_matplotlib()
    from matplotlib.figure import Figure

    with in_theme(theme):
        figure = Figure(figsize=(width, height), layout="constrained")
        row = figure.subplots(1, columns, sharey=True, squeeze=False)[0]
        for axes in row:
            axes.tick_params(which="both", colors=THEMES[theme][1])
        if title:
            figure.suptitle(title, fontsize="medium")
        yield figure, row


def finish(axes: Any, x: str, y: str, *, title: str = "", grid: str = "both") -> None:
    """Label a panel, with a faint grid and without a frame."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.25, axis=grid)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize="medium")


def add_legend(figure: Any, title: str | None = None) -> None:
    """The labels below the panels, in as many columns as fit; dollar signs are no formulas."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    columns = 3 if longest < 12 else 2 if longest < 22 else 1
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": columns}
    legend = figure.legend(handles, labels, fontsize="small", title=title, title_fontsize="small", **place)
    for text in legend.get_texts():
        text.set_parse_math(False)


def short_name(name: str) -> str:
    """A name on one line, with an ellipsis if it is long; a leading underscore would hide it from a legend."""
    line = re.sub(r"[\s\x00-\x1f]+", " ", name).strip()
    if len(line) > LONGEST_NAME:
        half = (LONGEST_NAME - 1) // 2
        line = f"{line[:half]}…{line[-half:]}"
    return f" {line}" if line.startswith("_") else line


def png_bytes(figure: Any, *, dpi: int) -> bytes:
    """A figure as a PNG with a palette, a quarter of the usual size."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    figure.dpi = dpi
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in letters that the font lacks
        canvas.draw()
    image = Image.frombytes("RGBA", canvas.get_width_height(), bytes(canvas.buffer_rgba()))
    file = io.BytesIO()
    image.convert("RGB").quantize(128).save(file, "PNG", optimize=True)
    return file.getvalue()


def data_uri(png: bytes) -> str:
    """A PNG as a URI that contains it."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
