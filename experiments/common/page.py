# SPDX-License-Identifier: Apache-2.0
"""Self-contained HTML pages from Jinja2 templates, with pictures inside."""

from pathlib import Path
from typing import Any

import jinja2

from experiments.common.plots import picture_files
from quell.core.atomic import write_atomically
from quell.diagnostics.theme import STYLE, data_uri

_NARROW = "(max-width: 700px)"
_DARK = "(prefers-color-scheme: dark)"
_MEDIA = {("tall", "dark"): f"{_NARROW} and {_DARK}", ("tall", "light"): _NARROW, ("wide", "dark"): _DARK}


def write_page(template: Path, path: Path, contents: dict[str, Any]) -> None:
    """Fill in a template and write the page; its pictures are read from the page's folder.

    Args:
        template: a Jinja2 template; it may extend `base.html` of this package, which has the look of all pages.
        path: of the page.
        contents: variables of the template.
    """
    folders = [template.parent, Path(__file__).parent]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["minus"] = _minus
    environment.globals["style"] = STYLE
    environment.globals["picture"] = lambda name: _picture(path.parent / f"{name}.png")
    text = environment.get_template(template.name).render(contents)
    write_atomically(path, lambda file: file.write(text.encode()))


def _minus(value: float, digits: int = 1) -> str:
    """A number with a proper minus sign."""
    return f"{value:.{digits}f}".replace("-", "−")


def _picture(path: Path) -> dict[str, Any]:
    """The variants of a picture as data URIs: the default, and one for each other condition of the screen."""
    uris = {variant: data_uri(file.read_bytes()) for variant, file in picture_files(path).items()}
    return {"image": uris["wide", "light"], "sources": [(media, uris[key]) for key, media in _MEDIA.items()]}
