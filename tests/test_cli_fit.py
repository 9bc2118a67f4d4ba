# SPDX-License-Identifier: Apache-2.0
"""`quell fit` and `quell report`: from two files to a folder, and every way in which it can fail."""

import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import quell
import tolerances
from model_files import ROWS, write_files
from quell.cli import fit as fit_command
from quell.cli.app import app
from quell.cli.data_file import read_data
from quell.cli.fit_folder import FitFolder
from quell.cli.fit_settings import FitSettings
from quell.cli.model_file import load_model
from quell.fit.checkpoint.file import read_contents

MODELS = """
import jax.numpy as jnp
import quell

ready = quell.gaussian_regression([[1.0], [2.0], [-1.0]], [0.3, 1.1, -0.2], noise=0.5)
number = 3

def line(data):
    return quell.gaussian_regression(jnp.stack([data["x"], jnp.ones(len(data["x"]))], axis=1), data["y"], noise=0.5)

def by_name(x, y):
    return quell.gaussian_regression(x[:, None], y, noise=0.5)

def nothing(data):
    return None

def broken(data):
    return data["z"]

def exploding(data):
    return quell.Model(lambda z, x: jnp.sqrt(z[0] - 5.0) - x**2, quell.NormalPrior(), data["x"], 1)
"""
NUMPYRO = """
import numpyro
import numpyro.distributions as dist

def slope(x, y):
    rate = numpyro.sample("rate", dist.Exponential(1.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(rate * x, 0.5), obs=y)
"""


@pytest.fixture
def files(tmp_path):
    return write_files(tmp_path, MODELS)


@pytest.fixture
def no_report(monkeypatch):
    """The page has tests of its own, and costs seconds."""
    monkeypatch.setattr(quell.FitResult, "report", lambda self, path: path.write_text(f"<p>{self.status.name}</p>"))


def _run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def _fit(files, *words, **options):
    return _run(*_fit_words(files, *words, **options))


def _fit_words(files, *words, model="line", **options):
    defaults = {"data": files.data, "family": "meanfield", "steps": 60, "variates": "none", "out": files.out}
    given = [word for name, value in (defaults | options).items() for word in (f"--{name}", value)]
    return [str(word) for word in ("fit", f"{files.models}:{model}", *given, *words)]


def _printed(result):
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())


# The happy path


def test_a_fit_leaves_everything_in_its_folder_and_the_report_can_be_written_again(files, no_report, monkeypatch):
    result = _fit(files, "--seed", 4)
    assert result.exit_code == 0, result.output
    assert "status   completed" in result.stdout
    assert {path.name for path in files.out.iterdir()} == {
        "checkpoint.quell",
        "settings.json",
        "result.json",
        "posterior.npz",
        "report.html",
    }
    settings = json.loads((files.out / "settings.json").read_text())["options"]
    assert settings["model"] == f"{files.models}:line"
    assert (settings["data"], settings["steps"], settings["seed"]) == (str(files.data), 60, 4)
    summary = json.loads((files.out / "result.json").read_text())
    assert (summary["status"], summary["steps"], summary["skipped"]) == ("completed", 60, 0)
    assert summary["chosen"] is None
    assert math.isfinite(summary["elbo"])
    assert all(summary["seconds"][stage] >= 0 for stage in ("reading", "compiling", "fitting"))
    with np.load(files.out / "posterior.npz", allow_pickle=False) as draws:
        assert draws["z"].shape == (1000, 2)
        found = [[entry["mean"], entry["sd"]] for entry in summary["parameters"].values()]
        np.testing.assert_allclose(np.array(found).T, [draws["z"].mean(axis=0), draws["z"].std(axis=0, ddof=1)])
    assert (files.out / "report.html").read_text() == "<p>COMPLETED</p>"
    written = {path.name: path.read_bytes() for path in files.out.iterdir()}
    for name in ("report.html", "posterior.npz", "result.json"):
        (files.out / name).unlink()
    monkeypatch.undo()
    again = _run("report", files.out, "--yes")
    assert again.exit_code == 0, again.output
    assert "status   completed" in again.stdout
    for name in ("posterior.npz", "checkpoint.quell", "settings.json"):
        assert (files.out / name).read_bytes() == written[name]
    assert "<html" in (files.out / "report.html").read_text()


def test_the_options_say_what_is_fitted(files):
    settings = FitSettings(
        model=f"{files.models}:line",
        data=str(files.data),
        family="lowrank",
        steps=60,
        seed=3,
        learning_rate=0.1,
        batch_size=2,
        variates="c1, c7",
    )
    plan = settings.plan(checkpoint=quell.Checkpoint(files.out))
    gradient, optimizer = plan.algorithm.gradient, plan.algorithm.optimizer
    assert gradient.problem.family == quell.LowRank(2, 2)
    assert gradient.sampler == quell.Sampler(batch_size=2)
    assert gradient.names == ("c1", "c7")
    assert (plan.key == jax.random.key(3)).all()
    updates, _ = optimizer.update(jnp.ones(1), optimizer.init(jnp.ones(1)))
    np.testing.assert_allclose(updates, -0.1, **tolerances.DIFFERENCES)
    untuned = FitSettings(model=f"{files.models}:ready", variates="default", learning_rate=0.1)
    gradient = untuned.plan(checkpoint=quell.Checkpoint(files.out)).algorithm.gradient
    assert gradient.variates == quell.default_variates(gradient.problem, gradient.sampler)
    assert len(gradient.variates) == 3
    assert gradient.sampler == quell.Sampler(4)


def test_by_default_the_gradient_is_chosen(files):
    falling = FitSettings(model=f"{files.models}:ready", steps=30, learning_rate=0.1)
    made = falling.plan(checkpoint=quell.Checkpoint(files.out))
    grads, state = made.start.params, made.start.algorithm.optimizer
    for _ in range(21):
        updates, state = made.options.optimizer.update(grads, state)
    assert max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(updates)) < 1e-12, (
        "ten warm-up steps may only learn weights"
    )
    exact = FitSettings(model=f"{files.models}:ready").plan(checkpoint=quell.Checkpoint(files.out))
    assert exact.choice is not None
    assert exact.choice.exact
    batched = FitSettings(model=f"{files.models}:ready", batch_size=2).plan(checkpoint=quell.Checkpoint(files.out))
    assert batched.choice is not None
    assert not batched.choice.exact
    assert batched.choice.variates
    assert batched.algorithm.gradient.sampler == quell.Sampler(10, 2)


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize(
    "words", [(), pytest.param(("--batch-size", 2), marks=pytest.mark.slow)], ids=["exact", "minibatches"]
)
def test_the_choice_is_told(words, files):
    result = _fit(files, *words, variates="auto", family="fullrank")
    assert result.exit_code == 0, result.output
    chosen = json.loads((files.out / "result.json").read_text())["chosen"]
    assert chosen in _printed(result)
    assert _run("report", files.out, "--yes").exit_code == 0
    assert json.loads((files.out / "result.json").read_text())["chosen"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_ctrl_c_leaves_a_checkpoint_and_says_how_to_resume(files, tmp_path):
    options = ("--learning-rate", 0.01, "--checkpoint-every", 1000)
    whole = SimpleNamespace(models=files.models, data=files.data, out=tmp_path / "whole")
    assert _fit(whole, *options, steps=100_000).exit_code == 0
    command = [sys.executable, "-m", "quell", *_fit_words(files, *options, steps=100_000)]
    job = subprocess.Popen(
        command,
        env=os.environ | {"JAX_ENABLE_X64": "1"},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test in the background ignores it
    )
    while not (files.out / "checkpoint.quell").exists():
        assert job.poll() is None
        time.sleep(0.01)
    job.send_signal(signal.SIGINT)
    line = job.communicate(timeout=tolerances.PATIENCE)[1].strip().splitlines()[-1]
    assert job.returncode == 130
    assert re.match(r"Interrupted after \d+ of 100000 steps\. To resume: quell fit ", line), line
    assert not (files.out / "result.json").exists()
    shown = _run("report", files.out, "--yes")
    assert shown.exit_code == 0
    assert json.loads((files.out / "result.json").read_text())["status"] == "interrupted"
    resumed = _run(*line.partition("quell ")[2].split())
    assert resumed.exit_code == 0, resumed.output
    one, two = (read_contents(at.out / "checkpoint.quell").arrays for at in (whole, files))
    assert all(one[name].tobytes() == two[name].tobytes() for name in one)


@pytest.mark.usefixtures("no_report")
def test_a_fit_that_diverges_is_a_failure(files):
    result = _fit(files, model="exploding")
    assert result.exit_code == 1
    assert re.search(r"The fit diverged after \d+ steps\. .*Lower the learning rate", _printed(result))
    assert json.loads((files.out / "result.json").read_text())["status"] == "diverged"


# Kinds of models


def test_a_model_is_an_object_or_a_function_of_the_data(files):
    data = read_data(files.data)
    assert load_model(f"{files.models}:ready").num_data == 3
    assert load_model(f"{files.models}:line", data).dim == 2
    assert load_model(f"{files.models}:by_name", data).dim == 1
    assert load_model(str(files.models)).num_data == 3, "the only model object"


def test_a_numpyro_model_is_taken_as_it_is(files, tmp_path):
    file = tmp_path / "numpyro_model.py"
    file.write_text(NUMPYRO)
    model = load_model(str(file), read_data(files.data))
    assert (model.dim, model.num_data) == (1, 4)
    assert "rate" in model.constrain(jnp.zeros(1))
    made = file.with_name("made.py")
    made.write_text(NUMPYRO + "\nimport quell\n\ndef made(data):\n    return quell.from_numpyro(slope, **data)\n")
    assert load_model(f"{made}:made", read_data(files.data)).dim == 1


def test_a_model_may_import_its_neighbours(tmp_path):
    (tmp_path / "beside_the_model.py").write_text("NOISE = 0.5\n")
    text = (
        "import quell\nfrom beside_the_model import NOISE\nm = quell.gaussian_regression([[1.0]], [2.0], noise=NOISE)\n"
    )
    (tmp_path / "mine.py").write_text(text)
    assert load_model(str(tmp_path / "mine.py")).dim == 1


# Data


def test_data_are_read_by_name(tmp_path):
    (tmp_path / "data.csv").write_text("\ufeffx, label\n1.5,0\n-2e3,1\n\n")
    found = read_data(tmp_path / "data.csv")
    np.testing.assert_array_equal(found["x"], [1.5, -2000.0])
    np.testing.assert_array_equal(found["label"], [0, 1])
    assert found["label"].dtype == np.int64
    np.savez(tmp_path / "data.npz", x=np.ones((2, 3)), flag=np.array([True, False]), scale=0.5)
    found = read_data(tmp_path / "data.npz")
    assert {name: array.shape for name, array in found.items()} == {"x": (2, 3), "flag": (2,), "scale": ()}


BAD_CSV = {
    "x,y\n1,2\n3,\n": r"The column 'y' of .* got an empty cell in row 2; drop or impute",
    "x,y\n1,2\n3,nan\n": r"The column 'y' of .* got nan in row 2",
    "x,y\n1,2\n3,-inf\n": r"The column 'y' of .* got -inf in row 2",
    "x,y\n1,2\nred,4\n": r"The column 'x' of .* got 'red' in row 2; encode categories",
    "x,y\n1,2\n3\n": r"Row 2 of .* must have 2 cells, got 1",
    "x,x\n1,2\n": r"got the header \['x', 'x'\] and 1 rows\.",
    "x,\n1,2\n": r"got the header \['x', ''\] and 1 rows\.",
    "x,y\n": r"got the header \['x', 'y'\] and 0 rows\.",
    "": r"got the header \[\] and 0 rows\.",
}


@pytest.mark.parametrize("text", BAD_CSV)
def test_a_bad_csv_is_refused_with_the_place(text, tmp_path):
    path = tmp_path / "data.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=BAD_CSV[text]):
        read_data(path)


def test_a_csv_that_is_not_utf8_is_refused(tmp_path, files):
    path = tmp_path / "latin.csv"
    path.write_bytes("x,größe\n1,2\n".encode("latin1"))
    with pytest.raises(ValueError, match=r"latin\.csv must be UTF-8 text, got byte 0xf6 .*; try `iconv"):
        read_data(path)
    result = _fit(files, data=path)
    assert result.exit_code == 2
    assert "must be UTF-8 text" in _printed(result)


def test_a_csv_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "data.csv"
    path.write_text("x\n" + "1" * 200_000 + "\n")
    with pytest.raises(ValueError, match=r"data\.csv must be a readable `\.csv` file, got field larger"):
        read_data(path)


BAD_NPZ = {
    "missing": ({"x": np.array([[1.0, 2.0], [3.0, np.nan]])}, r"The array 'x' of .* got nan at \[1, 1\]"),
    "texts": ({"x": np.array(["a", "b"])}, r"The array 'x' of .* got dtype <U1"),
    "objects": ({"x": np.array([None, 1])}, r"must be an archive of plain arrays \(.*pickle"),
}


@pytest.mark.parametrize("what", BAD_NPZ)
def test_a_bad_npz_is_refused_with_the_place(what, tmp_path):
    arrays, text = BAD_NPZ[what]
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(ValueError, match=f"(?s){text}"):
        read_data(tmp_path / "data.npz")


def test_an_unknown_data_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`--data` .* got '.*none\.csv', which does not exist"):
        read_data(tmp_path / "none.csv")
    (tmp_path / "data.txt").write_text("x")
    with pytest.raises(ValueError, match=r"`--data` .* got '.*data\.txt', a \.txt file"):
        read_data(tmp_path / "data.txt")
    (tmp_path / "data.npz").write_text("no archive")
    with pytest.raises(ValueError, match=r"data\.npz must be an archive"):
        read_data(tmp_path / "data.npz")


# Bad input on the command line

BAD = {
    "fit nowhere.py --out {out}": r"got '.*nowhere\.py'",
    "fit {models}:other --out {out}": r"must be one of .* \(ready\), got 'other'",
    "fit {models}:number --out {out}": r"must be one of .* \(ready\), got 'number'",
    "fit {models} --data {data} --out {out}": r"`--data` needs a function of the data, got 'ready'",
    "fit {models}:nothing --data {data} --out {out}": r"nothing in .* must return a quell model, got None",
    "fit {models}:broken --data {data} --out {out}": r"broken in .* cannot be called .*\(KeyError: 'z'\)",
    "fit {models}:line --out {out}": r"must be one of .* \(ready\), got 'line'",
    "fit {models}:ready --family full --out {out}": r"family must be one of .*, got 'full'\. Did you mean 'fullrank'",
    "fit {models}:ready --steps 0 --out {out}": r"`steps` must be at least 1, got 0",
    "fit {models}:ready --learning-rate -1 --out {out}": r"`learning_rate` must be positive and finite, got -1\.0",
    "fit {models}:ready --batch-size 9 --out {out}": r"`batch_size` .*9",
    "fit {models}:ready --variates S8 --out {out}": r"must be one of auto, default, none, S4.* got 'S8'",
    "fit {models}:ready --checkpoint-every 0 --out {out}": r"`every_steps` .*0",
    "fit {two} --out {out}": r"must have one model or one function, got .* with a, b;",
    "fit {wrong}:other --data {data} --out {out}": r"other\(a, b\) in .* got x, y;",
    "fit {wrong}:model --out {out}": r"cannot be evaluated \(TypeError: .*`quell\.check_model\(model\)`",
    "report {out} --yes": r"must be one that `quell fit` wrote, got .*\(settings\.json: ",
}
WRONG = """
import jax.numpy as jnp
import quell

model = quell.Model(lambda z: z, quell.NormalPrior(), jnp.ones(3), 1)

def other(a, b):
    return model
"""


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_refused_before_anything_is_written(words, files, tmp_path):
    two, wrong = tmp_path / "two.py", tmp_path / "wrong.py"
    two.write_text("def a(data):\n    pass\n\ndef b(data):\n    pass\n")
    wrong.write_text(WRONG)
    filled = words.format(models=files.models, data=files.data, out=files.out, two=two, wrong=wrong)
    result = _run(*filled.split())
    assert result.exit_code == 2, result.output
    assert re.search(BAD[words], _printed(result)), _printed(result)
    assert not files.out.exists()


@pytest.mark.usefixtures("no_report")
def test_a_folder_with_a_fit_is_not_overwritten(files):
    assert _fit(files).exit_code == 0
    before = {path.name: path.read_bytes() for path in files.out.iterdir()}
    refused = _fit(files)
    assert refused.exit_code == 2
    assert re.search(r"already has a fit; pass `--resume`", _printed(refused))
    other = _fit(files, "--resume", "--seed", 3, steps=80)
    assert other.exit_code == 2
    assert re.search(r"got other values of --steps \(60 before\), --seed \(0 before\)", _printed(other))
    files.data.write_text(ROWS.replace("0.4", "0.7"))
    for changed in (_fit(files, "--resume"), _run("report", files.out, "--yes")):
        assert changed.exit_code == 2
        assert "targets" in _printed(changed)
    assert {path.name: path.read_bytes() for path in files.out.iterdir()} == before
    (files.out / "checkpoint.quell").unlink()
    gone = _run("report", files.out, "--yes")
    assert gone.exit_code == 2
    assert "checkpoint.quell" in _printed(gone).replace(" ", "")


@pytest.mark.usefixtures("no_report")
def test_resume_in_an_empty_folder_starts_anew(files):
    assert _fit(files, "--resume").exit_code == 0
    assert _fit(files, "--resume").exit_code == 0, "nothing is left to do"


def test_a_folder_that_cannot_be_made_is_refused(files, tmp_path):
    (tmp_path / "file").write_text("")
    result = _fit(files, out=tmp_path / "file" / "out")
    assert result.exit_code == 2
    assert re.search(r"`--out` must be a writable folder, got ", _printed(result))


# What a folder may do


@pytest.fixture
def fitted(files, no_report):
    assert _fit(files).exit_code == 0
    return files


def test_a_report_runs_a_file_only_if_it_is_told_to(fitted, monkeypatch):
    fitted.models.write_text(MODELS + "\nprint('this file runs')\n")
    refused = _run("report", fitted.out)
    assert refused.exit_code == 2
    said = _printed(refused).replace(" ", "")  # a long path is broken anywhere
    assert re.search(r"mustbetoldtorun.*,got\S*models\.py:line;pass`--yes`.*`--modelFILE", said)
    assert "this file runs" not in refused.output
    for words in (("--yes",), ("-y",), ("--model", f"{fitted.models}:line")):
        assert "this file runs" in _run("report", fitted.out, *words).output
    monkeypatch.setattr(fit_command, "_is_terminal", lambda: True)
    for answer, code in ((True, 0), (False, 1)):
        asked = []
        monkeypatch.setattr("typer.confirm", lambda text, **_: _answered(asked, text, answer))  # noqa: B023
        result = _run("report", fitted.out)
        assert result.exit_code == code
        assert ("this file runs" in result.output) == answer
        assert re.search(r"Run the Python file of \S*models\.py:line", asked[0])


def _answered(asked, text, answer):
    asked.append(text)
    if not answer:
        raise typer.Abort
    return True


def test_a_report_of_another_model_is_refused(fitted):
    other = _run("report", fitted.out, "--model", f"{fitted.models}:by_name")
    assert other.exit_code == 2
    assert "was written by another fit" in _printed(other)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), PermissionError(13, "Permission denied")])
def test_outputs_that_cannot_be_written_are_one_line(error, fitted, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr("quell.cli.fit_folder.write_atomically", fail)
    result = _run("report", fitted.out, "--yes")
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert re.search(rf"must be a writable folder .*\({error.strerror}\); .*`quell report", _printed(result))


def test_a_disk_that_fills_up_at_the_end_of_a_fit_is_one_line(files, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FitFolder, "_write_files", fail)
    result = _fit(files)
    assert result.exit_code == 2
    assert re.search(r"\(No space left on device\); the fit is kept in checkpoint\.quell", _printed(result))
    assert not (files.out / "fit.lock").exists()


WRONG_SETTINGS = {
    '{"steps": "60"}': r"`steps` must be an integer of at least 1, got '60'",
    '{"tolerance": -1}': r"`tolerance` must be positive and finite, got -1",
    '{"model": 5}': r"`model` must be a text, got 5",
    '{"data": ["x"]}': r"`data` must be a text, got \['x'\]",
    '{"variates": 7}': r"`variates` must be a text, got 7",
    '{"family": {}}': r"`family` must be a text, got \{\}",
    '{"seed": 1.5}': r"`seed` must be an integer of at least 0, got 1\.5",
    '{"seed": 99999999999}': r"`seed` must be below 2147483648, got 99999999999",
    '{"learning_rate": "0.1"}': r"`learning_rate` must be positive and finite, got 0\.1",
    '{"batch_size": true}': r"`batch_size` must be an integer of at least 1, got True",
    '{"unknown": 1}': r"unexpected keyword argument 'unknown'",
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("options", WRONG_SETTINGS)
def test_wrong_types_in_the_settings_are_one_line(options, tmp_path):
    begun = {"quell": "0", "processes": 1, "options": {"model": "models.py"} | json.loads(options)}
    (tmp_path / "settings.json").write_text(json.dumps(begun))
    result = _run("report", tmp_path, "--yes")
    assert result.exit_code == 2, result.output
    assert re.search(WRONG_SETTINGS[options], _printed(result)), _printed(result)


@pytest.mark.parametrize(
    "text", ["[]", "{", "3", '{"options": 3, "processes": 1}', '{"processes": 1e999}', "[" * 10**5]
)
def test_settings_that_are_no_settings_are_one_line(text, tmp_path):
    (tmp_path / "settings.json").write_text(text)
    result = _run("report", tmp_path, "--yes")
    assert result.exit_code == 2, result.output
    assert "must be one that `quell fit` wrote" in _printed(result)


# Two processes


def test_a_folder_that_another_process_works_in_is_refused(fitted):
    lock = fitted.out / "fit.lock"
    assert not lock.exists(), "removed at the end"
    lock.write_text(json.dumps({"pid": os.getppid(), "host": socket.gethostname()}))
    busy = _fit(fitted, "--resume")
    assert busy.exit_code == 2
    text = rf"must have one `quell fit` at a time, got process {os.getppid()} on {socket.gethostname()}; .* delete"
    assert re.search(text, _printed(busy)), _printed(busy)
    lock.write_text(json.dumps({"pid": 2**22 + 1, "host": "elsewhere"}))
    assert "on elsewhere" in _printed(_fit(fitted, "--resume")), "whether that process lives is not known here"
    lock.write_text("")
    assert "got another process" in _printed(_fit(fitted, "--resume"))


def test_the_lock_of_a_dead_process_is_ignored(fitted):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (fitted.out / "fit.lock").write_text(json.dumps({"pid": ended.pid, "host": socket.gethostname()}))
    assert _fit(fitted, "--resume").exit_code == 0
    assert not (fitted.out / "fit.lock").exists()


def test_the_lock_is_there_during_a_fit_and_names_the_process(files, monkeypatch):
    seen = []
    run = fit_command.run_plan
    monkeypatch.setattr(
        fit_command, "run_plan", lambda *given: (seen.append((files.out / "fit.lock").read_text()), run(*given))[1]
    )
    monkeypatch.setattr(FitFolder, "_write_files", lambda *_: None)
    assert _fit(files).exit_code == 0
    assert json.loads(seen[0]) == {"pid": os.getpid(), "host": socket.gethostname()}
