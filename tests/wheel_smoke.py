# SPDX-License-Identifier: Apache-2.0
"""The built wheel in an empty environment: it finds its data, fits, and has the library alone. Run by `make build`."""

import importlib.util

import jax

import quell


def main() -> None:
    """Load both packaged data sets and fit one of them."""
    shapes = {name: quell.paper.load(name).features.shape for name in ("ionosphere", "sonar")}
    assert shapes == {"ionosphere": (176, 35), "sonar": (208, 61)}, shapes
    data = quell.paper.load("sonar")
    model = quell.logistic_regression(data.features, data.labels)
    result = quell.fit(model, quell.FullRank(model.dim), key=jax.random.key(0))
    assert result.status is quell.Status.CONVERGED, result
    assert importlib.util.find_spec("experiments") is None, "the wheel holds the library alone"
    print(f"quell {quell.__version__} works")


if __name__ == "__main__":
    main()
