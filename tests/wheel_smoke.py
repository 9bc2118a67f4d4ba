# SPDX-License-Identifier: Apache-2.0
"""Tries the installed wheel in an environment with the core dependencies only; `make build` runs it."""

import sys

OPTIONAL = ("arviz", "matplotlib", "numpyro", "rich", "sklearn", "typer")


def check_import_is_lean() -> None:
    import quell

    loaded = [name for name in OPTIONAL if name in sys.modules]
    assert not loaded, f"`import quell` imported {loaded}"
    assert "site-packages" in str(quell.__file__), f"not the installed wheel: {quell.__file__}"


def check_packaged_data() -> None:
    from quell.paper import load

    shapes = {"ionosphere": (176, 35), "ionosphere-full": (351, 35), "sonar": (208, 61)}
    for name, shape in shapes.items():
        data = load(name)
        assert data.features.shape == shape, (name, data.features.shape)
        assert set(data.labels) == {-1.0, 1.0}, name


def main() -> None:
    check_import_is_lean()
    check_packaged_data()
    print("wheel smoke test passed")


if __name__ == "__main__":
    main()
