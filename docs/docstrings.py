# SPDX-License-Identifier: Apache-2.0
"""What the API pages need to know about our code: fields are constructor arguments, an example is a doctest."""

import re
from typing import Any

from griffe import (
    Attribute,
    Class,
    Expr,
    ExprCall,
    ExprKeyword,
    Extension,
    Function,
    Object,
    Parameter,
    ParameterKind,
    Parameters,
)

_PLAIN = ParameterKind.positional_or_keyword


class Fields(Extension):
    """Gives frozen modules and named tuples the constructor that Python will make for them."""

    def on_class_members(self, *, cls: Class, **kwargs: Any) -> None:
        """Called by Griffe for each class, when its fields are known."""
        fields = [_parameter(member) for member in cls.members.values() if _is_field(member)]
        if fields and "__init__" not in cls.members:
            me = Parameter("self", kind=_PLAIN)
            cls.set_member("__init__", Function("__init__", parent=cls, parameters=Parameters(me, *fields)))


class Examples(Extension):
    """Reads `Example:` as the section `Examples:`, whose doctests are shown as code."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Called by Griffe for each object, before its docstring is read."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)


def _is_field(member: Any) -> bool:
    if not isinstance(member, Attribute) or member.annotation is None or "property" in member.labels:
        return False
    return not str(member.annotation).startswith("eqx.AbstractVar")


def _parameter(field: Attribute) -> Parameter:
    return Parameter(field.name, annotation=field.annotation, kind=_PLAIN, default=_default(field.value))


def _default(value: str | Expr | None) -> str | Expr | None:
    """The default of a field: as written, or as told to `eqx.field`."""
    if not isinstance(value, ExprCall) or str(value.function) != "eqx.field":
        return value
    told = {argument.name: argument.value for argument in value.arguments if isinstance(argument, ExprKeyword)}
    if "default_factory" in told:
        return f"{told['default_factory']}()"
    return told.get("default")
