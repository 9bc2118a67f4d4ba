# SPDX-License-Identifier: Apache-2.0
"""The documentation is complete, and its code runs."""

import ast
import functools
import importlib.util
import math
import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from mkdocs.exceptions import PluginError
from numpyro import infer

import catalogue
import quell
import test_laws
from exact import Rule
from quell.adapters.numpyro import family_ensemble
from quell.diagnostics import report
from quell.models.quadrature import equally_spaced


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PACKAGE = ROOT / "src" / "quell"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
API_PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
WITHOUT_NAMES = {"cli", "core"}
SUBPACKAGES = sorted({path.parent.name for path in PACKAGE.glob("*/__init__.py")} - WITHOUT_NAMES)
"""Those with public names: the command line has none, and what users need of `core` is in `quell`."""
RUNNABLE = [path for path in (README, *PAGES) if "```python run\n" in _text(path)]
RECIPES = ["quell.ControlVariate", "quell.BaseGradient", "quell.Gradient"]
IN_FULL = {README, *(ROOT / "docs" / f"{name}.md" for name in ("quickstart", "literature", "extending"))}
"""Pages whose fits are as long here as they are there; most of the others are run in full when they are built."""
FEW = 20
"""Steps of a fit on the others."""


# Reading the source, not the objects: a class without a docstring gets one from Python at run time


@functools.cache
def _tree(module: str) -> ast.Module:
    path = ROOT / "src" / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(_text(file))


def _exports(module: str) -> dict[str, str]:
    """Public names of a package, with the module that each is imported from."""
    return _imported(_tree(module).body) | _lazy_exports(module)


def _imported(body: list[ast.stmt]) -> dict[str, str]:
    imports = [node for node in body if isinstance(node, ast.ImportFrom)]
    return {alias.asname: str(node.module) for node in imports for alias in node.names if alias.asname}


def _lazy_exports(module: str) -> dict[str, str]:
    """Names that a package imports when they are first used, with the module that each comes from.

    Type checkers see them imported, or `__getattr__` compares its argument with them (`if name == "x": return y.x`).
    """
    homes = {}
    for node in _tree(module).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            homes |= _imported(node.body)
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
            homes |= {found[1]: f"{module}.{found[2]}" for found in _LAZY.finditer(ast.unparse(node))}
    return homes


_LAZY = re.compile(r"if name == '(\w+)':\n +return (\w+)\.\1$", re.MULTILINE)


def _definition(path: str) -> str:
    """Where a name is defined, through any number of re-exports."""
    module, _, name = path.rpartition(".")
    source = _exports(module).get(name)
    return path if source is None or source == "quell" or _is_module(source, name) else _definition(f"{source}.{name}")


def _is_module(package: str, name: str) -> bool:
    """Whether a package means its file by a name, not a function of the same name that it imports from there."""
    is_file = (ROOT / "src" / Path(*package.split(".")) / f"{name}.py").exists()
    return is_file and _exports(package).get(name, package) == package


def _is_ambiguous(path: str) -> bool:
    """Whether a file has the name too, there or where it is imported from, and would be shown instead."""
    module, _, name = path.rpartition(".")
    source = _exports(module).get(name) if module else None
    is_file = (ROOT / "src" / Path(*path.split("."))).with_suffix(".py").exists()
    return is_file or (source not in (None, module) and _is_ambiguous(f"{source}.{name}"))


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
        if source != "quell" and not _is_module(source, name)
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
    assert [name for name in shown if _is_ambiguous(name)] == ["quell.variates.literature"], "files are shown"


def test_lazily_imported_names_are_public_too():
    packages = ["quell", *(f"quell.{name}" for name in SUBPACKAGES)]
    lazy = [name for name in packages if "__getattr__" in [getattr(node, "name", "") for node in _tree(name).body]]
    assert {name: sorted(_lazy_exports(name)) for name in lazy} == {
        "quell": ["Flow", "from_numpyro", "from_pymc"],
        "quell.adapters": sorted(set(quell.adapters.__all__) - set(vars(quell.adapters))),
    }
    assert _definition("quell.from_numpyro") == "quell.adapters.numpyro.model.from_numpyro"
    assert _definition("quell.from_pymc") == "quell.adapters.pymc.from_pymc"


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


# The map, and the way of one step


def test_the_map_is_the_import_contract():
    contracts = tomllib.loads(_text(ROOT / "pyproject.toml"))["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    block = re.search(r"^## The house$.*?^```\n(.*?)^```$", _text(ROOT / "CONTRIBUTING.md"), re.DOTALL | re.MULTILINE)
    lines = [re.split(r" {2,}", line, maxsplit=1) for line in block.group(1).splitlines()]
    assert [line[0] for line in lines] == [re.sub(r"[()]", "", layer) for layer in layers]
    assert all(len(line) == 2 for line in lines), "each layer says what it is for"


ONE_STEP = ROOT / "docs" / "one-step.md"
MOST_FILES = 15
ASIDE = ("core/", "data/", "models/")


def _files_of_a_step() -> dict[str, set[str]]:
    """Files of quell that a full-rank step with one variate goes through, in order, with the functions called there."""
    features = np.array([[1.0, 2.0], [1.0, -1.0], [1.0, 0.5]])
    problem = quell.Problem(quell.logistic_regression(features, [0, 1, 1]), quell.FullRank(2))
    gradient = quell.Gradient(problem, quell.paper.variates("c2"), sampler=quell.Sampler(10, 1))
    algorithm = quell.Algorithm(gradient, optax.adam(0.05))
    state, found = algorithm.init(), {}

    def listen(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            found.setdefault(Path(code.co_filename).relative_to(PACKAGE).as_posix(), set()).add(code.co_name)

    before = sys.getprofile()
    sys.setprofile(listen)
    try:
        jax.eval_shape(algorithm.step, jax.random.key(0), state)
    finally:
        sys.setprofile(before)
    found.pop("core/compile_clock.py", None)  # which JAX calls when a trace ends
    return found


def _are_one_liners(file: str, called: set[str]) -> bool:
    """Whether all functions that were called have one statement after their docstring."""
    functions = [node for node in ast.walk(ast.parse(_text(PACKAGE / file))) if isinstance(node, ast.FunctionDef)]
    return all(len(node.body) - (ast.get_docstring(node) is not None) <= 1 for node in functions if node.name in called)


def test_the_page_on_one_step_names_the_files_that_a_step_goes_through():
    found = _files_of_a_step()
    bases = [file for file, called in found.items() if file.endswith("/base.py") and _are_one_liners(file, called)]
    main = [file for file in found if not file.startswith(ASIDE) and file not in bases]
    rows = re.findall(r"^\| \d+ \| `(\S+)` \|", _text(ONE_STEP), re.MULTILINE)
    assert rows == main
    assert len(rows) <= MOST_FILES
    left = _text(ONE_STEP).partition("## Left aside")[2]
    aside = re.findall(r"`([a-z_]+/[a-z_]+\.py)`", left)
    assert sorted(aside) == sorted(set(found) - set(main))
    counts = re.search(r"(\d+) files of `src/quell` in all, and the table has the (\d+) .* The other (\d+) ", left)
    assert [int(count) for count in counts.groups()] == [len(found), len(main), len(aside)]


# What the pages name


@pytest.mark.parametrize("path", [README, ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda path: path.stem)
def test_files_and_commands_on_a_page_exist(path):
    text = _text(path)
    paths = re.findall(r"\b((?:docs|examples|experiments|src|tests)/[\w/.-]*\w)", text)
    assert [name for name in paths if not (ROOT / name).exists()] == []
    modules = [name for name in re.findall(r"python -m (experiments[\w.]*)", text) if "NAME" not in name]
    roots = [ROOT / Path(*module.split(".")) for module in modules]
    assert [root for root in roots if not (root.with_suffix(".py").exists() or (root / "__main__.py").exists())] == []


FIRST_EDITION = ["benchmarks/", "quell bench", "quell reproduce", "zoo", "trial run", "quieter", "was needed"]


@pytest.mark.parametrize("path", [README, ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda path: path.stem)
def test_no_page_has_the_words_of_the_first_edition(path):
    """Records of decisions are history."""
    found = [word for word in FIRST_EDITION if word.lower() in _text(path).lower()]
    assert path.parent.name == "decisions" or found == []


# Formulas


def _loaded(name: str):
    spec = importlib.util.spec_from_file_location(f"quell_docs_{name}", ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def hooks():
    return _loaded("hooks")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_every_formula_can_be_shown(hooks):
    nodes = [node for file in sorted(PACKAGE.rglob("*.py")) for node in ast.walk(ast.parse(_text(file)))]
    docstrings = [node.value.value for node in nodes if isinstance(node, ast.Expr) and _is_text(node.value)]
    texts = [*docstrings, *map(_text, PAGES)]
    formulas = [formula for text in texts for formula in re.findall(r"\\\((.+?)\\\)", text, re.DOTALL)]
    assert len(formulas) > 200
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
    with pytest.raises(ValueError, match=r"got \\int"):
        hooks.formula_html(r"\int f")


# The code


def test_no_python_code_is_left_out():
    assert {path.name for path in RUNNABLE} >= {"README.md", "quickstart.md"}
    fences = [fence for path in (README, *PAGES) for fence in re.findall(r"^ *```py.*$", _text(path), re.MULTILINE)]
    assert set(fences) == {"```python run"}


@pytest.fixture(scope="module")
def execution():
    return _loaded("execution")


@pytest.fixture
def quickly(monkeypatch):
    """Fits and measurements with few steps and the base gradient alone, whatever a page asks for.

    So the fits of one model share one program. Compiling is most of the time.
    """
    for name in ("fit", "fit_many"):
        monkeypatch.setattr(quell, name, _capped(getattr(quell, name), "steps", variates=(), sampler=None))
    monkeypatch.setattr(quell, "sweep", _capped(quell.sweep, "steps", subsets=("none",)))
    for name in ("gradient_variance", "contributions"):
        monkeypatch.setattr(quell.diagnostics, name, _capped(getattr(quell.diagnostics, name), "num"))
    run, default_variates = infer.SVI.run, quell.default_variates
    monkeypatch.setattr(infer.SVI, "run", lambda svi, key, steps, *a, **k: run(svi, key, min(steps, FEW), *a, **k))
    monkeypatch.setattr(family_ensemble, "default_variates", lambda *args: ())
    monkeypatch.setattr(quell, "default_variates", lambda *args: default_variates(*args)[:1])


def _capped(function, count, **fixed):
    return lambda *args, **options: function(*args, **{**options, count: min(options.get(count, FEW), FEW), **fixed})


def marks_of(path):
    """Pages take long; those that few read first are left to a release."""
    return [pytest.mark.slow if path.stem in ("README", "numpyro", "exact") else pytest.mark.release]


# Of a fit with few steps the last thousand are few, and some are none; it has not converged
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning", "ignore:Mean of empty slice")
@pytest.mark.filterwarnings("ignore:`linear_response` is about an optimum", "ignore:Standard deviations of `linear")
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=marks_of(path)) for path in RUNNABLE],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_the_code_of_a_page_runs(path, execution, monkeypatch, request):
    if path not in IN_FULL:
        request.getfixturevalue("quickly")
    monkeypatch.setattr(report, "_TOO_SHORT", math.inf)  # no step without some of the variates is compiled and timed
    page = execution.Page(_text(path), str(path))
    with execution.drawing():
        for block in page.blocks():
            page.run(block)


# The newcomers of the page on extending quell


@pytest.fixture(scope="module")
def newcomers(execution):
    """The classes that the page defines."""
    path = ROOT / "docs" / "extending.md"
    page = execution.Page(_text(path), str(path))
    for block in page.blocks():
        if "def exact_draw" in block.group(1) or re.search(r"^class ", block.group(1), re.MULTILINE):
            page.run(block)
    return SimpleNamespace(**page.namespace)


def _laws_hold(name):
    case = catalogue.Case(name)
    pairs = case.pairs()
    test_laws.check_unbiased(case, pairs)
    return {term for term, _, _ in pairs}, {estimator.name for _, _, estimator in pairs}


@pytest.mark.slow
def test_the_laws_hold_for_the_approximation_of_the_page(newcomers, monkeypatch):
    monkeypatch.setattr(catalogue, "approximations", lambda dim: {"lagging": newcomers.LaggingTaylor()})
    monkeypatch.setitem(catalogue.CASES, "an approximation", ("logistic", "full-rank", 2))
    terms, _ = _laws_hold("an approximation")
    assert "lagging of data" in terms


@pytest.mark.slow
@pytest.mark.release
def test_the_laws_hold_for_the_family_of_the_page(newcomers, monkeypatch):
    family = newcomers.SinhArcsinh(2)
    pairs = {"loc": (0.3, -0.2), "log_scale": (-0.5, -0.7), "skew": (-0.2, 0.3), "log_tail": (0.1, -0.1)}
    params = {name: jnp.array(pair) for name, pair in pairs.items()}
    nodes, weights = equally_spaced(81, 8.0)
    noise = Rule(nodes[:, None], weights).power(2)
    latents, slopes = jax.vmap(lambda row: (family.sample(params, row), jax.jacfwd(family.sample, 1)(params, row)))(
        jnp.asarray(noise.nodes)
    )
    volume = (nodes[1] - nodes[0]) ** 2 * np.abs(np.linalg.det(np.asarray(slopes)))
    entry = catalogue.FamilyEntry(family, params, noise, Rule(np.asarray(latents), volume))
    monkeypatch.setitem(catalogue.FAMILIES, "a family", entry)
    monkeypatch.setitem(catalogue.CASES, "a family", ("function", "a family", None))
    terms, estimators = _laws_hold("a family")
    assert {"data", "prior", "variational", "score"} <= terms
    assert {"rp", "sf"} <= estimators
    test_laws.test_density_entropy_and_moments_agree_with_quadrature("a family")
    test_laws.test_a_capability_that_is_missing_is_refused_in_words("a family")


@pytest.mark.slow
@pytest.mark.release
def test_the_laws_hold_for_the_model_of_the_page(newcomers, monkeypatch):
    games = {"winner": jnp.array([0, 0, 1, 0, 1]), "loser": jnp.array([1, 1, 0, 1, 0])}
    monkeypatch.setitem(catalogue.MODELS, "a model", newcomers.Matches(games, quell.NormalPrior(), 2))
    monkeypatch.setitem(catalogue.CASES, "a model", ("a model", "full-rank", 2))
    assert ("data", "cf[all]") in {(term, one.name) for term, _, one in catalogue.Case("a model").pairs()}
    _laws_hold("a model")


# Pages that are run when they are built

MADE_UP = """# A page

```python run
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

print("seven", 3 + 4)
```

Between them.

```python run
plt.plot([1, 2])
plt.title("A < B")
```

```python run
alone = Figure()
alone.suptitle("Nobody registered this one")
alone
```
"""


def _built(execution, markdown, address="gallery/made-up.md"):
    page = SimpleNamespace(file=SimpleNamespace(src_uri=address))
    return execution.on_page_markdown(markdown, page=page, config=None, files=None)


def test_output_and_figures_stand_below_their_block(execution):
    shown = _built(execution, MADE_UP)
    first, second, third = re.split(r"(?:Between them\.|alone = Figure)", shown)
    assert first.endswith("```\n\n```` { .text .output .no-copy }\nseven 7\n````\n\n")
    assert "<img" not in first
    assert second.count("<img") == third.count("<img") == 1
    assert re.search(r'<img class="drawn" alt="A &lt; B" width="\d+" src="data:image/png;base64,iVBOR', second)
    assert 'alt="Nobody registered this one"' in third
    assert "python run" not in shown


def test_a_page_is_built_the_same_twice(execution):
    assert _built(execution, MADE_UP) == _built(execution, MADE_UP)


@pytest.mark.parametrize(
    ("line", "error"),
    [("missing_name", "NameError: name 'missing_name'"), ("plt.plot(", "SyntaxError: '(' was never closed")],
)
def test_a_block_that_fails_stops_the_build_with_page_and_line(execution, line, error):
    broken = MADE_UP.replace("plt.plot([1, 2])", f"def draw():\n    {line}\n\n\ndraw()")
    with pytest.raises(PluginError, match=re.escape(f"gallery/made-up.md, line 14: {error}")):
        _built(execution, broken)


@pytest.mark.parametrize(("address", "value"), [("concepts.md", None), ("gallery/made-up.md", "0")])
def test_other_pages_are_highlighted_and_not_run(execution, monkeypatch, address, value):
    if value is not None:
        monkeypatch.setenv("QUELL_DOCS_RUN", value)
    shown = _built(execution, MADE_UP.replace("plt.plot", "missing_name"), address)
    assert shown.count("```python\n") == 3
    assert "seven 7" not in shown
    assert "python run" not in shown
