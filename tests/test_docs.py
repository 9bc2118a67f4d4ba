# SPDX-License-Identifier: Apache-2.0
"""The documentation is complete, and its code runs."""

import ast
import functools
import importlib.util
import re
from pathlib import Path

import pytest


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PACKAGE = ROOT / "src" / "quell"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
API_PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
SUBPACKAGES = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py") if path.parent.name != "cli")
RUNNABLE = [path for path in (README, *PAGES) if "```python run\n" in _text(path)]
RECIPES = ["quell.ControlVariate", "quell.BaseGradient", "quell.Gradient"]


# Reading the source, not the objects: a class without a docstring gets one from Python at run time


@functools.cache
def _tree(module: str) -> ast.Module:
    path = ROOT / "src" / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(_text(file))


def _exports(module: str) -> dict[str, str]:
    """Public names of a package, with the module that each is imported from."""
    imports = [node for node in _tree(module).body if isinstance(node, ast.ImportFrom)]
    return {alias.asname: str(node.module) for node in imports for alias in node.names if alias.asname}


def _definition(path: str) -> str:
    """Where a name is defined, through any number of re-exports."""
    module, _, name = path.rpartition(".")
    source = _exports(module).get(name)
    return path if source is None or source == "quell" or _is_module(source, name) else _definition(f"{source}.{name}")


def _is_module(package: str, name: str) -> bool:
    return (ROOT / "src" / Path(*package.split(".")) / f"{name}.py").exists()


def _assigned(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Assign):
        return [ast.unparse(target) for target in node.targets]
    return [ast.unparse(node.target)] if isinstance(node, ast.AnnAssign) else []


def _docstring(path: str) -> str | None:
    """The docstring of a class or a function, or the string under a constant."""
    module, _, name = path.rpartition(".")
    body = _tree(module).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node)
        if name in _assigned(node):
            is_string = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            return str(after.value.value) if is_string else None
    raise AssertionError(f"{path} is not defined where it is imported from")


def _public() -> dict[str, str]:
    """Every public name with its definition; subpackages and modules are pages, not names."""
    packages = ["quell", *(f"quell.{name}" for name in SUBPACKAGES)]
    names = [
        f"{package}.{name}"
        for package in packages
        for name, source in _exports(package).items()
        if name not in SUBPACKAGES and not _is_module(source, name)
    ]
    return {name: _definition(name) for name in names}


def _subclasses(bases: set[str]) -> list[str]:
    """Classes of ours that name one of the bases."""
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(file.relative_to(ROOT / "src").with_suffix("").parts)
        for node in ast.parse(_text(file)).body:
            if isinstance(node, ast.ClassDef) and bases & {ast.unparse(base) for base in node.bases}:
                found.append(f"{module}.{node.name}")
    return found


# The API pages


def test_every_public_name_is_on_an_api_page():
    shown = re.findall(r"^::: (\S+)$", "\n".join(_text(page) for page in API_PAGES), re.MULTILINE)
    documented = {_definition(name) for name in shown}
    assert [name for name, definition in _public().items() if definition not in documented] == []
    assert len(shown) == len(documented), "a name is shown twice"


def test_every_subpackage_has_an_api_page():
    pages = {page.stem for page in API_PAGES}
    assert [name for name in SUBPACKAGES if name not in pages] == []


def test_every_public_name_has_a_docstring():
    assert [name for name, definition in _public().items() if not _docstring(definition)] == []


def test_estimators_approximations_and_recipes_state_bias_and_cost():
    classes = [*_subclasses({"AbstractEstimator", "AbstractApproximation"}), *map(_definition, RECIPES)]
    assert len(classes) >= 8
    lacking = [
        f"{path} has no `{line}`"
        for path in classes
        for line in ("Bias:", "Cost:")
        if not re.search(rf"^{line} \S", _docstring(path) or "", re.MULTILINE)
    ]
    assert lacking == []


# Formulas


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("quell_docs_hooks", ROOT / "docs" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_formula_in_a_docstring_can_be_shown(hooks):
    sources = [_text(file) for file in sorted(PACKAGE.rglob("*.py"))]
    formulas = [formula for source in sources for formula in re.findall(r"\\\((.+?)\\\)", source, re.DOTALL)]
    assert len(formulas) > 100
    for formula in formulas:
        shown = hooks.formula_html(formula)
        assert "\\" not in shown
        assert shown.count("<") == 2 * shown.count("</")


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"-\mathrm{ELBO}/N", "−ELBO/N"),
        (r"\hat g = h + \sum_k a_k c_k", "g\u0302 = h + ∑[k] a[k] c[k]"),
        (r"M_\mathrm{eff} = B \sum_{t=1}^{T} (1-\gamma)^t", "M[eff] = B ∑[t=1]{T}(1 − γ){t}"),
        (r"\log p(y_i \mid x_i^\top z)", "log p(y[i] | x[i]{⊤}z)"),
    ],
)
def test_a_formula_reads_as_it_is_meant(hooks, latex, text):
    shown = hooks.formula_html(latex)
    for tag, mark in (("<sub>", "["), ("</sub>", "]"), ("<sup>", "{"), ("</sup>", "}")):
        shown = shown.replace(tag, mark)
    assert re.sub(r"<[^>]+>", "", shown) == text


def test_an_unknown_command_in_a_formula_is_named(hooks):
    with pytest.raises(ValueError, match=r"holds \\int"):
        hooks.formula_html(r"\int f")


# The code


def test_no_python_code_is_left_out():
    assert {path.name for path in RUNNABLE} >= {"README.md", "quickstart.md"}
    fences = [fence for path in (README, *PAGES) for fence in re.findall(r"^ *```py.*$", _text(path), re.MULTILINE)]
    assert set(fences) == {"```python run"}


@pytest.mark.parametrize("path", RUNNABLE, ids=lambda path: path.name)
def test_the_code_of_a_page_runs(path):
    text = _text(path)
    namespace: dict[str, object] = {}
    for block in re.finditer(r"^```python run\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        lines_before = text.count("\n", 0, block.start(1))  # so that an error names the line of the page
        exec(compile("\n" * lines_before + block.group(1), str(path), "exec"), namespace)
