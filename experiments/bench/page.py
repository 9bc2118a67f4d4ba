# SPDX-License-Identifier: Apache-2.0
"""One self-contained page of the results that lie in a folder: posteriors with known answers, and large models."""

import json
from pathlib import Path
from typing import Any

from experiments.bench.large import compare
from experiments.bench.posteriordb import page as posteriors
from experiments.common import page
from quell.core.atomic import write_atomically

_TEMPLATE = Path(__file__).with_name("page.html")
PAGE, POSTERIORDB, LARGE = "benchmark.html", "posteriordb.json", "large.json"
"""Files of a folder of results."""


def write_results(name: str, records: list[dict[str, Any]], folder: Path) -> list[Path]:
    """Write the records of a benchmark, and the page of all that are in the folder.

    Args:
        name: `POSTERIORDB` or `LARGE`.
        records: one for each run.
        folder: of the files.
    """
    text = json.dumps({"records": records}, indent=1) + "\n"
    write_atomically(folder / name, lambda file: file.write(text.encode()))
    return [folder / name, write_page(folder, folder)]


def write_page(results: Path, folder: Path) -> Path:
    """Write `PAGE`, with its picture beside it, of the results of another folder or of the same."""
    found, many = _content(results / POSTERIORDB), _content(results / LARGE)
    if found:
        posteriors.draw_accuracy(found["records"], folder / f"{posteriors.PICTURE}.png")
    contents = {
        "posteriordb": posteriors.variables(found) if found else None,
        "large": compare.by_model(many) if many else None,
    }
    page.write_page(_TEMPLATE, folder / PAGE, contents)
    return folder / PAGE


def _content(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None
