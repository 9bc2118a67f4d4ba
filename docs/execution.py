# SPDX-License-Identifier: Apache-2.0
r"""Code on the pages: `python run` blocks are highlighted, and on some pages run, with what they print and draw.

The blocks of a page run from top to bottom in one namespace. A block that fails stops the build, with its page and
line. `QUELL_DOCS_RUN=0` shows the code alone, for a quick build.
"""

import ast
import base64
import contextlib
import html
import io
import os
import re
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from mkdocs.exceptions import PluginError

RUN = ("extending.md", "gallery/", "numpyro.md", "sweep.md", "troubleshooting.md")
"""Beginnings of the addresses of pages whose code is run when the pages are built."""

BLOCK = re.compile(r"^```python run\n(.*?)^```$", re.DOTALL | re.MULTILINE)

STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.prop_cycle": "cycler('color', ['D55E00', '3D8FD1', '009E73', 'E69F00', 'CC79A7', '8A8F98'])",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.figsize": (7.0, 3.0),
    "grid.alpha": 0.25,
    "legend.frameon": False,
}
"""Settings of matplotlib: colours are Okabe and Ito's; the style sheet inverts figures in the dark theme."""

QUICK = "--xla_backend_optimization_level=0"
"""For the many small programs of a page, which are compiled once and hardly run; quell's own have options of theirs."""

_DPI, _PIXELS_PER_INCH = 150, 100


class Shown(NamedTuple):
    """What a block leaves behind.

    Attributes:
        text: that it printed.
        figures: of matplotlib, the open ones and the value of the last expression.
    """

    text: str
    figures: list[Any]


class Page:
    """The code of one page, run block by block.

    Args:
        markdown: of the page.
        path: its name in errors.
    """

    def __init__(self, markdown: str, path: str) -> None:
        """Nothing is run yet."""
        self.markdown, self.path = markdown, path
        self.namespace: dict[str, Any] = {"__name__": "__page__"}

    def blocks(self) -> Iterator[re.Match[str]]:
        """The blocks to run, in their order."""
        return BLOCK.finditer(self.markdown)

    def run(self, block: re.Match[str]) -> Shown:
        """Run one block; whatever it raises passes through, with the page's line in its traceback."""
        lines_before = self.markdown.count("\n", 0, block.start(1))
        tree = ast.parse("\n" * lines_before + block.group(1), self.path)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        printed, value = io.StringIO(), None
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, self.path, "exec"), self.namespace)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), self.path, "eval"), self.namespace)
        return Shown(printed.getvalue(), _figures(value))

    def line_of(self, error: BaseException) -> int | None:
        """The last line of the page that an error went through."""
        if isinstance(error, SyntaxError):
            return error.lineno
        lines = [number for frame, number in _frames(error.__traceback__) if frame.f_code.co_filename == self.path]
        return lines[-1] if lines else None

    def shown(self) -> str:
        """The page with the output of each block below it.

        Raises:
            PluginError: for a block that fails, with page and line.
        """
        pieces, end = [], 0
        with drawing():
            for block in self.blocks():
                try:
                    found = self.run(block)
                except Exception as error:
                    text = f"{self.path}, line {self.line_of(error)}: {type(error).__name__}: {error}"
                    raise PluginError(text) from error
                pieces += [self.markdown[end : block.start()], highlighted(block), output(found)]
                end = block.end()
        return "".join([*pieces, self.markdown[end:]])


def highlighted(block: re.Match[str]) -> str:
    """A block as the highlighter takes it."""
    return f"```python\n{block.group(1)}```"


def output(found: Shown) -> str:
    """Text and pictures as Markdown."""
    text = f"\n\n```` {{ .text .output .no-copy }}\n{found.text.rstrip()}\n````" if found.text.strip() else ""
    return text + "".join(f"\n\n{_image(figure)}" for figure in found.figures)


def on_config(config: Any) -> Any:
    """Called by mkdocs before JAX is imported, which reads its flags then."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK}"
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page."""
    path = page.file.src_uri
    if path.startswith(RUN) and os.environ.get("QUELL_DOCS_RUN") != "0":
        return Page(markdown, path).shown()
    return BLOCK.sub(highlighted, markdown)


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Draw into memory, in our style; no figure is left open."""
    import matplotlib
    from matplotlib import pyplot

    matplotlib.use("Agg", force=True)
    with matplotlib.rc_context(STYLE):
        yield
    pyplot.close("all")


def _figures(value: Any) -> list[Any]:
    """The open figures, which are closed, and the value if it is one that nobody registered."""
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    found = [pyplot.figure(number) for number in pyplot.get_fignums()]
    pyplot.close("all")
    return [*found, value] if isinstance(value, Figure) and value not in found else found


def _image(figure: Any) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DPI, transparent=True, metadata={"Software": None})
    data = base64.b64encode(file.getvalue()).decode()
    titles = [figure.get_suptitle(), *(axes.get_title() for axes in figure.axes)]
    alt = html.escape("; ".join(filter(None, titles)) or "A figure that the code above draws")
    width = round(_PIXELS_PER_INCH * figure.get_figwidth())
    return f'<img class="drawn" alt="{alt}" width="{width}" src="data:image/png;base64,{data}">'


def _frames(traceback: types.TracebackType | None) -> Iterator[tuple[types.FrameType, int]]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next
