# SPDX-License-Identifier: Apache-2.0
"""Figures made of panels, saved as PNG: light or dark, panels side by side or stacked."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from quell.core.atomic import write_atomically
from quell.diagnostics.theme import PALETTE, THEMES, in_theme, png_bytes

__all__ = ["PALETTE", "add_legend", "in_all_variants", "make_panels", "picture_files", "save_figure"]

Content = TypeVar("Content")


def in_all_variants(draw: Callable[[Content, bool], Any]) -> Callable[[Content, Path], None]:
    """Save a figure as `NAME.png`, and its variants in `pictures/`: dark, and with stacked panels.

    Args:
        draw: of the content, and of whether the panels are stacked.
    """

    @functools.wraps(draw)
    def save(content: Content, path: Path) -> None:
        for (shape, theme), file in picture_files(path).items():
            file.parent.mkdir(exist_ok=True)
            dpi = 130 if shape == "wide" else 100
            save_figure(lambda: draw(content, shape == "tall"), file, theme=theme, dpi=dpi)  # noqa: B023

    return save


def save_figure(draw: Callable[[], Any], path: Path, *, theme: str = "light", dpi: int = 130) -> None:
    """Draw a figure in the colours of a theme and save it."""
    with in_theme(theme):
        picture = png_bytes(draw(), dpi=dpi)
    write_atomically(path, lambda file: file.write(picture))


def picture_files(path: Path) -> dict[tuple[str, str], Path]:
    """Files of the variants of a picture, by shape (`wide`, `tall`) and theme (`light`, `dark`)."""
    files = {
        (shape, theme): path.parent / "pictures" / f"{path.stem}-{shape}-{theme}.png"
        for shape in ("wide", "tall")
        for theme in THEMES
    }
    return files | {("wide", "light"): path}


def make_panels(rows: int, columns: int, *, tall: bool = False, width: float = 4.6) -> tuple[Any, list[list[Any]]]:
    """A figure and its axes by row and column; in a tall one all of them are stacked, for a narrow screen."""
    from matplotlib.figure import Figure

    if tall:
        figure = Figure(figsize=(width, 3.5 * rows * columns + 0.8), layout="constrained")
        stacked = list(figure.subplots(rows * columns, 1, squeeze=False)[:, 0])
        return figure, [stacked[k * columns : (k + 1) * columns] for k in range(rows)]
    figure = Figure(figsize=(max(width * columns, 6.4), 3.8 * rows), layout="constrained")
    return figure, [list(row) for row in figure.subplots(rows, columns, squeeze=False)]


def add_legend(figure: Any, handles: list[Any], *, tall: bool = False, columns: int = 5) -> None:
    """One legend for all panels."""
    place, columns = ("outside upper center", 3) if tall else ("outside lower center", columns)
    figure.legend(handles=handles, loc=place, ncols=min(len(handles), columns), fontsize="small")
