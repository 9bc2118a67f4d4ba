# SPDX-License-Identifier: Apache-2.0
"""The `quell` command."""


def main() -> None:
    """Run the command line, or name the extra to install."""
    try:
        from quell.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich"}:
            raise
        raise SystemExit(f"The quell command needs {error.name}; try: pip install 'quell[cli]'") from None
    app()
