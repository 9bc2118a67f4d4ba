# SPDX-License-Identifier: Apache-2.0
r"""Formulas for the pages: simple LaTeX between \( and \) becomes HTML, so that no script is needed.

Docstrings and pages may use what is listed here. Anything else stops the build with the name of what is missing.
"""

import html
import re
from collections.abc import Callable
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

OPERATORS = {
    "=": "=",
    "+": "+",
    "-": "−",
    "<": "<",
    ">": ">",
    "cdot": "·",
    "ge": "≥",
    "le": "≤",
    "leftarrow": "←",
    "mid": "|",
    "odot": "⊙",
    "pm": "±",
    "sim": "~",
}
LETTERS = {
    "Sigma": "Σ",
    "alpha": "α",
    "beta": "β",
    "delta": "δ",
    "epsilon": "ε",
    "gamma": "γ",
    "kappa": "κ",
    "lambda": "λ",
    "eta": "η",
    "nu": "ν",
    "mu": "μ",
    "phi": "φ",
    "psi": "ψ",
    "rho": "ρ",
    "sigma": "σ",
    "tau": "τ",
    "theta": "θ",
    "xi": "ξ",
}
SIGNS = {
    "nabla": "∇",
    "partial": "∂",
    "sum": "∑",
    "prod": "∏",
    "top": "⊤",
    "|": "‖",
    "{": "{",
    "}": "}",
    "'": "′",
    ",": ", ",
}
WORDS = {"det", "diag", "exp", "log", "max", "min", "tanh"}
ACCENTS = {"bar": "\u0304", "hat": "\u0302", "tilde": "\u0303"}
UPRIGHT = {"mathrm", "text"}

_TOKEN = re.compile(r"(\\[A-Za-z]+)\s*|(\\.|\s+|.)", re.DOTALL)
_SPACE = " "


class Formula:
    """One pass over the tokens of a formula.

    Args:
        latex: what stands between the brackets.
    """

    def __init__(self, latex: str) -> None:
        self.latex = latex
        self.tokens = [command or other for command, other in _TOKEN.findall(latex.strip())]
        self.position = 0

    def html(self) -> str:
        """The whole formula."""
        return _tidy(self._until(None))

    def _next(self) -> str:
        if self.position == len(self.tokens):
            raise ValueError(
                f"A formula must close its braces and give every command its argument, got {self.latex!r}."
            )
        self.position += 1
        return self.tokens[self.position - 1]

    def _until(self, end: str | None) -> str:
        pieces: list[str] = []
        while self.position < len(self.tokens) or end is not None:
            token = self._next()
            if token == end:
                break
            pieces.append(self._piece(token, "".join(pieces)))
        return "".join(pieces)

    def _piece(self, token: str, before: str) -> str:
        if token.isspace() or token == r"\,":
            return _SPACE
        if token in "^_":
            tag = "sup" if token == "^" else "sub"
            return f"<{tag}>{self._argument().replace(_SPACE, '')}</{tag}>"
        name = token.removeprefix("\\")
        if name in OPERATORS:
            return _operator(OPERATORS[name], before)
        return self._atom(token, name)

    def _atom(self, token: str, name: str) -> str:
        commands: dict[str, Callable[[], str]] = {
            "{": lambda: self._until("}"),
            r"\overline": lambda: f'<span style="text-decoration: overline">{self._argument()}</span>',
            r"\tfrac": lambda: f"{self._argument()}⁄{self._argument()}",
        }
        if token in commands:
            return commands[token]()
        if token.startswith("\\") and name in UPRIGHT | ACCENTS.keys():
            argument = self._argument()
            return _upright(argument) if name in UPRIGHT else _accented(argument, ACCENTS[name])
        if token.startswith("\\") and name in WORDS:
            return f"{_SPACE}{name}{_SPACE}"
        if name in SIGNS or name in LETTERS:
            return SIGNS.get(name) or _italic(LETTERS[name])
        if token.startswith("\\"):
            raise ValueError(
                f"A formula must use the commands of docs/hooks.py only, got {token} in {self.latex!r}; add it there."
            )
        return _italic(token) if token.isalpha() else html.escape(token)

    def _argument(self) -> str:
        token = self._next()
        return _tidy(self._piece(token, ""))


def _operator(sign: str, before: str) -> str:
    """A sign with room on both sides; a minus that stands first belongs to what follows."""
    is_prefix = sign == "−" and (not before.strip() or before.rstrip()[-1] in "(=,|+<>≤≥~←")
    return html.escape(sign) if is_prefix else f"{_SPACE}{html.escape(sign)}{_SPACE}"


def _italic(letter: str) -> str:
    return f"<i>{letter}</i>"


def _upright(piece: str) -> str:
    return re.sub(r"</?i>", "", piece)


def _accented(piece: str, accent: str) -> str:
    return piece.replace("</i>", f"{accent}</i>")


def _tidy(piece: str) -> str:
    """Single spaces, none inside brackets, none between a superscript and a factor that follows."""
    piece = re.sub(r"\s+", _SPACE, piece).strip()
    return re.sub(r"</sup> (?=<i>|\()", "</sup>", piece.replace("( ", "(").replace(" )", ")"))


def formula_html(latex: str) -> str:
    r"""The HTML of what stands between \( and \).

    Args:
        latex: letters, signs, sub- and superscripts, and the commands listed in this file.
    """
    return f'<span class="formula">{Formula(latex).html()}</span>'


class FormulaProcessor(InlineProcessor):
    """Finds formulas in running text; code is left alone."""

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # noqa: N802
        """Store the HTML where nothing else in Markdown will touch it."""
        return self.md.htmlStash.store(formula_html(m.group(1))), m.start(0), m.end(0)


class FormulaExtension(Extension):
    """Formulas in Markdown."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Look for formulas after code spans, and before a backslash hides a bracket."""
        md.inlinePatterns.register(FormulaProcessor(r"\\\((.+?)\\\)", md), "formula", 185)


def on_config(config: Any) -> Any:
    """Called by mkdocs: pages and docstrings are read with formulas."""
    config.markdown_extensions.append(FormulaExtension())
    return config
