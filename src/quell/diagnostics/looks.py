# SPDX-License-Identifier: Apache-2.0
"""How quell's pages and pictures look: colours, the style sheet, and pictures inside a page."""

import base64
import contextlib
import importlib.util
import io
import warnings
from collections.abc import Iterator
from typing import Any

GROUNDS = {"light": ("#ffffff", "#1a1a1a"), "dark": ("#16181d", "#e8e8e8")}
"""Colours of ground and text."""

PALETTE = ("#D55E00", "#3D8FD1", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#8A8F98")
"""Okabe and Ito's colours, readable with the common forms of colour blindness and on both grounds."""

STYLE = """
:root{--ground:#fff;--ink:#1a1a1a;--soft:#5c6066;--line:#d9dce1;--card:#f6f7f9;--bar:#d55e00;--tick:#1a1a1a;
--holds:#00694b;--fails:#a8320a;--open:#6b5200;font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
line-height:1.5}
@media(prefers-color-scheme:dark){:root{--ground:#16181d;--ink:#e8e8e8;--soft:#a6abb3;--line:#353a43;--card:#1e2128;
--tick:#fff;--holds:#5fd3ac;--fails:#ff9c74;--open:#ecc94b}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink)}
main{max-width:1180px;margin:0 auto;padding:16px}
h1{font-size:1.7rem;margin:.4em 0}
h2{font-size:1.25rem;margin:2em 0 .4em;border-bottom:1px solid var(--line)}
h3{font-size:1.05rem;margin:0}
p{max-width:75ch}
small,.card p,footer{color:var(--soft);font-size:.85rem}
figure{margin:12px 0}
img{display:block;width:100%;height:auto}
.verdicts{list-style:none;padding:0}
.verdicts li{padding:8px 0;border-bottom:1px solid var(--line);overflow-wrap:anywhere}
.verdicts small{display:block}
.chip{display:inline-block;min-width:7.2em;text-align:center;border:1px solid;border-radius:99px;padding:0 8px;
font-size:.85rem;font-weight:600}
.holds{color:var(--holds)}.fails{color:var(--fails)}.open{color:var(--open)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr));gap:14px}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px}
.card p{margin:.2em 0 .6em}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.92rem}
th,td{text-align:right;padding:3px 6px;white-space:nowrap}
th[scope=row]{text-align:left}
thead th{color:var(--soft);font-weight:500}
td span{color:var(--soft);font-size:.85em}
"""
"""The style sheet that all pages share; it follows the reader's choice of a light or a dark ground."""


def check_matplotlib() -> None:
    """Refuse to draw where there is nothing to draw with."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError(
            "A picture was asked for, and matplotlib is not installed. The extra `plots` was needed. "
            "Type `pip install 'quell[plots]'`."
        )


@contextlib.contextmanager
def on_ground(ground: str) -> Iterator[None]:
    """Draw with the colours of a light or a dark ground."""
    import matplotlib

    back, ink = GROUNDS[ground]
    inked = ("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "text.color")
    settings: dict[Any, Any] = {"figure.facecolor": back, "axes.facecolor": back, "legend.framealpha": 0.0}
    with matplotlib.rc_context({**settings, **dict.fromkeys(inked, ink)}):
        yield


def png_bytes(figure: Any, *, dpi: int) -> bytes:
    """A figure as a PNG with a palette, which is a quarter of the size."""
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
    """A picture as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
