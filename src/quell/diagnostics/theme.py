# SPDX-License-Identifier: Apache-2.0
"""Colours, style sheet and PNG files shared by all figures and pages."""

import base64
import contextlib
import importlib.resources
import importlib.util
import io
import warnings
from collections.abc import Iterator
from typing import Any

THEMES = {"light": ("#ffffff", "#1a1a1a"), "dark": ("#16181d", "#e8e8e8")}
"""Colours of background and text."""

PALETTE = ("#D55E00", "#3D8FD1", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#8A8F98")
"""Okabe and Ito's colours, readable with the common forms of colour blindness and in both themes."""

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
