"""What the tasks that ask for an expression's value share."""

from __future__ import annotations

from llm_envs.errors import InvalidActionError
from llm_envs.mathematics.arithmetic import whole_value
from llm_envs.rewards import MAX_DIGITS

__all__ = ["answerable_value", "in_canonical_order"]

_LIMIT = 10**MAX_DIGITS


def in_canonical_order(expression: str) -> str:
    """Return the same text for expressions that differ only in the order of their terms, or of a term's factors.

    "85+47" and "47+85" become "47+85"; "27*34-65" becomes "-65+27*34". An expression with parentheses or a division
    is returned as it is. The text is a key: it need not be readable.
    """
    if "(" in expression or "/" in expression:
        return expression
    terms = expression.replace("-", "+-").split("+")
    if "*" in expression:
        terms = [_sorted_factors(term) if "*" in term else term for term in terms]
    terms.sort()
    return "+".join(terms)


def _sorted_factors(term: str) -> str:
    if term[0] == "-":
        return "-" + _sorted_factors(term[1:])
    return "*".join(sorted(term.split("*")))


def answerable_value(expression: str) -> int:
    """Return the expression's whole value; raise `InvalidActionError` if it has none or no answer could write it."""
    value = whole_value(expression)
    if not -_LIMIT < value < _LIMIT:
        raise InvalidActionError(f"the value has over {MAX_DIGITS} digits, more than an answer may have")
    return value
