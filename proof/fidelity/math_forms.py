r"""A grammar of the forms in which models write answers of mathematics, right and wrong: for `mathematics.py`.

Each kind of answer draws values (`math_values.py`), whose names stand in the forms with an @: `@n\,\text{cm}`. A right
form has the value of the published answer, `@target`; a wrong one is its neighbour: another value, sign, bracket or
unit, a hedge, or an operation that is not worked out.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from proof.fidelity.math_values import DRAWN, QUESTIONS

__all__ = ["AROUND", "BESIDE", "RIGHT", "WRONG", "Form", "answers"]


class Form(NamedTuple):
    """One answer to one problem."""

    kind: str
    """The published answer."""
    group: str
    """Of the form: "units", "spaces", "other values"."""
    question: str
    target: str
    text: str
    is_right: bool


_MEASURED = (
    r"@v\,\text{cm}", r"@v\text{ cm}", r"@v~\text{cm}", r"@v\;\text{cm}", r"@v\ \text{cm}", r"@v\:\mathrm{cm}",
    r"@v\,\mathrm{cm}^2", r"@v\text{ cm}^2", r"@v\text{ cm}^{3}", r"@v \text{ square units}", r"@v\text{ units}",
    r"@v \text{ miles per hour}", r"@v\,\text{km/h}", r"@v\,\frac{\text{km}}{\text{h}}", r"@v\text{ m/s}",
    r"@v\text{ days}", r"@v\text{ inches}", r"@v\text{ cubic feet}", r"@v\,\text{kg}", r"@v\quad\text{minutes}",
    r"@v cm", r"@v\mbox{ cm}", r"@v\textrm{ cm}", r"@v\ \textbf{cm}", r"@v \text{ sq. ft.}", r"@v\text{ units}^2",
    r"@v\,{\rm cm}", r"@v\,\rm{cm}", r"@v\,\Omega", r"@v\,\mu\text{m}", r"@v\text{ years old}", r"@v\,\text{ft}^2",
)  # fmt: skip
_SPACED = (
    r"\,@v\,", r" @v ", "~@v", r"@v\ ", r"\;@v", r"\quad @v", r"@v\!", "{@v}", r"\hspace{2pt}@v", r"\thinspace @v",
    "$@v$", r"\(@v\)", "$$@v$$", "@v.", "= @v", "=\u00a0@v", "\u2009@v",
)  # fmt: skip
_STYLED = (
    r"\displaystyle @v", r"\bf @v", r"{\bf @v}", r"\mathbf{@v}", r"\boldsymbol{@v}", r"\bm{@v}", r"\textstyle @v",
    r"\Large @v", r"\color{red}{@v}", r"\textcolor{blue}{@v}", r"{\large @v}", r"\underline{@v}", r"\mathrm{@v}",
)  # fmt: skip
_NAMED = (
    "x=@v", r"x\,=\,@v", "x = @v", "f(3)=@v", "f^{-1}(3) = @v", "a_{10}=@v", r"\text{Area} = @v",
    r"\text{Answer: }@v", r"\text{The answer is } @v", "AB = @v", "|AB| = @v", "[ABC] = @v", "m+n = @v", "x+y=@v",
    "a^2+b^2=@v", "xy = @v", r"\text{Total} = @v\text{ cm}", r"\lambda = @v", r"\det A = @v", "f(g(2)) = @v",
    "[ABCD] = @v", "P = @v", r"\text{Answer} = @v", r"\text{There are }@v\text{ ways}",
    r"\text{The number of ways is }@v", r"\text{Total: }@v", r"x=\mathbf{@v}", r"\therefore @v",
    r"P(\text{red}) = @v", r"x = @v \checkmark",
)  # fmt: skip
_HEDGED = (
    r"@v\text{ or }@w", "@v, @w", r"\{@v, @w\}", "[@v, @w]", "(@v, @w)", r"@v\text{ to }@w", r"x \ne @v",
    r"\text{not }@v", r"@v\text{ (maybe }@w)", r"\approx @v", r"\text{about }@v", "@v = @w", "@w = @v", "x=@v, y=@w",
    r"@v\quad @w", r"\pm @v", "x > @v", "@v < x", r"@v\ldots", "@v...", r"@v\dots", "@v\u2026", "x+1=@v",
    r"@v\text{ is wrong}", r"@v \pm 1", r"@v\text{ and }@w", r"@v; @w", r"\text{either }@v\text{ or }@w", r"@v? @w",
    r"@v\text{ million}", r"@v\text{ thousand}", r"@v\text{ dozen}", r"@v i", r"@v x", r"@v\text{ or so}",
    r"@v\text{ score}", r"@v\text{ if }x>0", r"\sim @v", r"@v\text{ tenths}", r"@v\text{ approx}", r"@v \lor @w",
    r"\le @v",
)  # fmt: skip


def _of(value: str, *groups: tuple[str, tuple[str, ...]], other: str = "") -> dict[str, tuple[str, ...]]:
    return {name: tuple(form.replace("@v", value).replace("@w", other) for form in forms) for name, forms in groups}


_UNITS, _SPACES, _STYLES, _NAMES, _HEDGES = (
    ("units", _MEASURED), ("spaces", _SPACED), ("fonts", _STYLED), ("names", _NAMED), ("hedges", _HEDGED),
)  # fmt: skip

RIGHT: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "a whole number": {
        **_of("@n", _UNITS, _SPACES, _STYLES, _NAMES),
        "degrees": (
            r"@n^\circ", r"@n\,^\circ", r"@n^{\circ}", "@n\u00b0", r"@n\degree", r"@n{}^\circ", r"@n\text{ degrees}",
        ),
        "money": (r"\$@n", r"\$\,@n", r"@n\,\$", r"@n\text{ dollars}", "\u20ac@n", r"x = \$@n"),
        "things": (r"@n\text{ ways}", r"@n\text{ apples}", r"@n \text{ people}", r"@n\text{ integers}"),
        "signs": (
            "(@n)", r"\left(@n\right)", "+@n", "@n.0", "@n.00", r"\frac{@twice}{2} = @n", "@a * @b = @n",
            r"@a\times@b = @n",
        ),
    },
    "a negative number": {
        **_of("-@n", _UNITS, _SPACES, _STYLES, _NAMES),
        "signs": (
            "\u2212@n", "- @n", r"-\,@n", "\u2013@n", "-@n.0", r"\left(-@n\right)", r"-\$@n", r"\$-@n", "{-}@n",
        ),
    },
    "a large number": {
        "thousands": (
            "@a,@b,@c", r"@a\,@b\,@c", "@a{,}@b{,}@c", "@a @b @c", r"@a,\!@b,\!@c", r"@a\;@b\;@c", "@a@b@c",
            "@a,@b,@c.00", "@a\u2009@b\u2009@c", r"@a,@b,@c\text{ ways}", r"\$@a,@b,@c", r"@a.@b@c \times 10^6",
            r"x = @a,@b,@c", r"@a,@b,@c\,\text{cm}", r"@a\ @b\ @c", r"\mathbf{@a,@b,@c}", "$@a,@b,@c$",
        ),
    },
    "a power of ten": {
        "powers": (
            "10^@k", "10^{@k}", r"x=10^{@k}", r"10^{@k}\text{ m}", r"1 \times 10^{@k}", r"1\cdot 10^@k", "1e@k",
        ),
    },
    "a fraction": {
        **_of(r"\frac{@p}{@q}", _UNITS, _SPACES, _STYLES, _NAMES),
        "fractions": (
            r"\dfrac{@p}{@q}", r"\tfrac{@p}{@q}", r"\cfrac{@p}{@q}", "@p/@q", r"\frac@plain", r"\dfrac @plain",
            "{@p}/{@q}", r"\frac{\,@p\,}{\,@q\,}", r"{@p \over @q}", r"\frac {@p} {@q}", r"@p\,/\,@q",
            r"\left(\frac{@p}{@q}\right)", r"P(A) = \frac{@p}{@q}", "@p/@q\\text{ miles}", "@p\u2044@q",
            r"\left.\frac{@p}{@q}\right.", "(@p/@q)", r"\frac{\mathbf{@p}}{\mathbf{@q}}",
            r"\frac{@p}{@q} \approx @short",
        ),
        "decimals": ("@round", "x = @round"),
        "not in lowest terms": (r"\frac{@pp}{@qq}", "@pp/@qq", r"\dfrac{@pp}{@qq}"),
    },
    "a negative fraction": {
        **_of(r"-\frac{@p}{@q}", _UNITS, _SPACES, _STYLES, _NAMES),
        "fractions": (
            r"\frac{-@p}{@q}", r"\dfrac{-@p}{@q}", r"-\dfrac{@p}{@q}", "-@p/@q", "\u2212@p/@q", r"-\frac@plain",
            r"-\left(\frac{@p}{@q}\right)", r"\frac{@p}{-@q}", r"x = \frac{-@p}{@q}", r"-\,\frac{@p}{@q}",
            r"\frac{- @p}{@q}", r"-{@p}/{@q}", r"{-@p \over @q}",
        ),
    },
    "a mixed number": {
        "mixed": (
            r"@w\frac{@r}{@q}", r"@w \frac{@r}{@q}", r"@w\,\frac{@r}{@q}", "@w @r/@q", r"@w\tfrac{@r}{@q}",
            r"@w\dfrac@r@q", r"@w\ \frac{@r}{@q}\text{ cups}", r"x = @w\frac{@r}{@q}",
        ),
    },
    "ninths": {"repeating": (
        r"0.\overline{@n}", r"0.\bar{@n}", r"0.@n\overline{@n}", r".\overline{@n}", r"0.\overline @n",
        r"x = 0.\overline{@n}", r"0.\dot{@n}",
    )},
    "twentieths": {
        "decimals": ("@d", "@bare", "@d0", r"@d\text{ m}", "x = @d", r"\mathbf{@d}", "@n/20", r"@d\,"),
        "percent": (r"@percent\%", "@percent%", r"@percent\,\%", r"@percent\text{ percent}"),
    },
    "a decimal": {
        **_of("@d", _UNITS, _SPACES, _STYLES, _NAMES),
        "decimals": ("@bare", "@d0", r"\frac{@n}{1000} = @d", "+@d", r"@percent\%"),
    },
    "money": {"money": (
        "@d", "@s", r"\$@d", r"@d\text{ dollars}", r"\$\,@d", "$@d", r"x = \$@d", r"\$@s", r"@d\$", r"\text{\$}@d",
        r"\$ @d", r"@d\ \text{USD}",
    )},
    "percent": {"percent": (
        r"@n\%", "@n%", "@n", "@d", r"@n\,\%", r"@n\text{ percent}", r"@n \%", r"@n\text{\%}", "x=@n\\%",
        r"\mathbf{@n\%}",
    )},
    "an angle": {"degrees": (
        r"@n^\circ", r"@n^{\circ}", "@n\u00b0", r"@n\,^\circ", r"@n\degree", r"@n\text{ degrees}", "@n",
        r"\angle ABC = @n^\circ", r"x = @n^{\circ}", r"@n{}^\circ", r"\theta = @n^\circ", "@n \u00b0", "@n\u00ba",
        r"@n^{\text{o}}", r"\mathbf{@n^\circ}",
    )},
    "a root": {
        **_of(r"@a\sqrt{@b}", _UNITS, _SPACES, _STYLES, _NAMES),
        "roots": (
            r"@a\sqrt {@b}", "@a\u221a@b", "@a\u221a(@b)", r"@a \sqrt{@b}", r"@a\,\sqrt{@b}", r"\sqrt{@square}",
            "@a*sqrt(@b)", "@asqrt(@b)", r"@a{\sqrt{@b}}", r"@a\cdot\sqrt{@b}", "\u221a@square", "@a\u00b7\u221a@b",
        ),
    },
    "a multiple of pi": {
        **_of(r"@a\pi", _UNITS, _SPACES, _STYLES, _NAMES),
        "products": (
            r"@a\,\pi", r"@a \pi", "@a\u03c0", r"@a\cdot\pi", "@a*pi", r"@a{\pi}", "@a pi", r"@a\times\pi",
            "@a \u03c0",
        ),
    },
    "a complex number": {
        **_of("@a+@bi", _SPACES, _STYLES),
        "imaginary": (
            "@a + @bi", "@a + @b i", r"@a+@b\,i", "@bi+@a", r"@a+@b\mathrm{i}", "z=@a+@bi", r"@a+@b\cdot i",
            "(@a+@bi)", "@a+@b*i", r"@a + @b\text{i}", r"w = @a + @b i",
        ),
    },
    "a polynomial": {
        **_of("@ax^2+@bx-@c", _SPACES, _STYLES),
        "terms": (
            "@ax^2 + @bx - @c", "@ax^{2}+@bx-@c", r"@ax^2\,+\,@bx\,-\,@c", "@ax\u00b2+@bx\u2212@c", "@bx+@ax^2-@c",
            "-@c+@bx+@ax^2", "f'(x) = @ax^2+@bx-@c", "y = @ax^2 + @bx - @c", "@a*x^2+@b*x-@c", "@a x^2 + @b x - @c",
            "(@ax^2+@bx-@c)", r"@a\cdot x^2+@b\cdot x-@c", "@a*x**2 + @b*x - @c", r"\left(@ax^2+@bx-@c\right)",
            "p(x)=@ax^{2}+@bx-@c",
        ),
    },
    "a set": {
        "sets": (
            r"\{@a, @b\}", r"\{@b,@a\}", r"\left\{@a, @b\right\}", r"\{\,@a,\,@b\,\}", r"\lbrace @a, @b \rbrace",
            r"x \in \{@a,@b\}", r"S = \{@a,@b\}", r"\bigl\{@a,@b\bigr\}", r"\{@a; @b\}", "{@a, @b}",
        ),
        "lists": (
            "@a, @b", "@b, @a", r"@a,\,@b", r"@a \text{ and } @b", r"@a \text{ or } @b", "x=@a, @b", r"x=@a,\ x=@b",
            "@a; @b", r"x = @a \text{ or } x = @b", "x_1 = @a, x_2 = @b", r"@a\quad\text{and}\quad @b",
            r"x = @a,\quad x = @b", r"x=@a \lor x=@b", r"x=@a\;\text{or}\;x=@b", "x = @a and x = @b", r"@a,\;@b",
            r"@a~\text{and}~@b", r"@a\text{ and }@b", r"\mathbf{@a, @b}", "$@a$ and $@b$", r"\displaystyle @a, @b",
        ),
    },
    "a pair": {
        **_of("(@a, @b)", _SPACES, _STYLES),
        "pairs": (
            "(@a,@b)", r"\left(@a,@b\right)", r"(@a,\,@b)", "(x,y) = (@a,@b)", "x=@a, y=@b", r"x = @a,\ y = @b",
            r"x=@a \text{ and } y=@b", r"\big(@a,@b\big)", r"(\,@a\,,\,@b\,)", r"(x, y) = \left(@a, @b\right)",
            "y=@b, x=@a", r"x=@a,\quad y=@b", "M = (@a, @b)", r"(@a\,,@b)",
        ),
    },
    "a ray": {
        **_of(r"(@a, \infty)", _SPACES, _STYLES),
        "intervals": (
            r"(@a,+\infty)", r"\left(@a,\infty\right)", r"]@a,\infty[", r"]@a, +\infty[", "x > @a", "@a < x",
            r"x \in (@a,\infty)", r"(@a,\,\infty)", r"\{x \mid x > @a\}", "(@a,\u221e)", "x>@a", r"x\,>\,@a",
            r"x \in ]@a,\infty[", r"x \gt @a", r"\{x : x > @a\}", r"\left]@a,\infty\right[",
        ),
    },
    "an interval": {
        **_of("[@a, @b)", _SPACES, _STYLES),
        "intervals": (
            "[@a,@b)", "[@a,@b[", r"@a \le x < @b", r"\left[@a,@b\right)", r"x \in [@a,@b)", r"@a \leq x < @b",
            r"[@a,\,@b)", r"@b > x \ge @a", r"@a\leqslant x<@b", "@a <= x < @b", r"\left[@a, @b\right[",
            r"x \ge @a \text{ and } x < @b", r"x < @b \text{ and } x \geq @a",
        ),
    },
    "a union": {
        "intervals": (
            r"(-\infty,@a)\cup(@b,\infty)", r"(@b,\infty)\cup(-\infty,@a)", r"x<@a \text{ or } x>@b",
            r"]-\infty,@a[\cup]@b,\infty[", "(\u2212\u221e,@a)\u222a(@b,\u221e)", r"x < @a \lor x > @b",
            r"(-\infty,@a)\,\cup\,(@b,\infty)", r"x \in (-\infty,@a)\cup(@b,\infty)", r"x<@a\;\text{or}\;x>@b",
            r"\left(-\infty,@a\right)\cup\left(@b,\infty\right)", r"(-\infty, @a) \cup (@b, +\infty)",
            r"x \in \left(-\infty,@a\right) \cup \left(@b,+\infty\right)", r"]-\infty,@a[ \cup ]@b,+\infty[",
        ),
    },
    "the empty set": {"signs": (
        r"\emptyset", r"\varnothing", r"\{\}", r"\{ \}", "\u2205", r"\left\{\right\}", r"\{\,\}", r"\,\emptyset",
        r"S = \emptyset",
    )},
    "a word": {"words": (
        "@w", r"\textbf{@w}", r"\mathrm{@w}", "@big", r"\text{@big}", r"\text{ @w }", r"\text{@w}.", r"\,\text{@w}",
        r"\mathbf{@w}", r"\textrm{@w}", r"\text{The answer is @w}", r"\displaystyle\text{@w}",
    )},
    "a choice": {"letters": (
        "@w", "(@w)", r"\text{@w}", r"\textbf{(@w)}", r"\mathrm{@w}", r"\textbf{@w}", "@w.", r"\text{(@w)}",
        r"\mathbf{@w}", r"\,\text{(@w)}", r"\mathrm{(@w)}",
    )},
    "a number in a base": {"bases": (
        "@n_@k", "@n_{@k}", r"@n_{@k}.", r"\,@n_@k", "(@n)_@k", "(@n)_{@k}", r"x = @n_@k", r"\mathbf{@n_@k}",
    )},
    "a percentage that is asked for": {"percent": (
        r"@n\%", "@n%", r"@n\,\%", r"@n\text{ percent}", r"@n\text{\%}", "@n",
    )},
    "an angle that is asked for": {"degrees": (
        r"\frac{@p}{@q}^\circ", r"\frac{@p}{@q}\,^{\circ}", "@p/@q\u00b0", r"\frac{@p}{@q}",
    )},
    "a ratio": {"ratios": ("@a:@b", "@a : @b", r"@a\colon @b", "@a{:}@b", r"@a\text{ to }@b")},
    "a logarithm": {"names": (
        r"\log_2(@a)", r"\log_{2}@a", r"\log_{2}{@a}", r"x = \log_2 @a", r"\log_2\,@a", r"\log_{2}\left(@a\right)",
    )},
    "letters": {"words": (
        "@a, @b", r"\text{@a, @b}", r"\text{@a and @b}", "@a,@b", r"\text{@a}, \text{@b}", r"\mathrm{@a,@b}",
    )},
    "an inequality": {"intervals": (
        "@a<x<@b", "(@a,@b)", r"x\in(@a,@b)", "@b>x>@a", r"@a\lt x\lt @b", r"x>@a\text{ and }x<@b", r"]@a,@b[",
        r"\{x \mid @a < x < @b\}", r"\{x\in\mathbb{R} : @a < x < @b\}",
    )},
    "a date": {"dates": ("@w @n", r"\text{@w }@n", r"\textbf{@w @n}", r"\text{@w @nth}", r"\mathrm{@w\ @n}")},
    "a time": {"dates": ("@n:@m p.m.", r"@n:@m\text{ p.m.}", r"\text{@n:@m pm}", r"@n{:}@m\text{ PM}")},
    "polar coordinates": {"pairs": (
        r"(@a,\pi/@b)", r"\left(@a,\dfrac{\pi}{@b}\right)", r"r=@a,\ \theta=\frac{\pi}{@b}", "(@a, \u03c0/@b)",
        r"(r,\theta)=\left(@a,\tfrac{\pi}{@b}\right)",
    )},
    "a line": {"names": ("y=@ax+@b", "@ax+@b", "f(x)=@ax+@b", r"y\,=\,@b+@ax", r"y=@a\cdot x+@b")},
    "a matrix": {"matrices": (
        r"\begin{pmatrix}@a&@b\\@c&@d\end{pmatrix}", r"\begin{bmatrix} @a & @b \\ @c & @d \end{bmatrix}",
        r"A = \begin{pmatrix} @a & @b \\ @c & @d \end{pmatrix}",
        r"\,\begin{pmatrix} @a & @b \\ @c & @d \end{pmatrix}", r"\begin{pmatrix} @a\,&\,@b \\ @c & @d \end{pmatrix}",
    )},
}  # fmt: skip
"""Forms of the same value, by kind and group."""

WRONG: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "a whole number": {
        **_of("@n", _HEDGES, other="@up"),
        "values": (
            "@up", "@down", "-@n", "@n0", "@n.5", "@n.0000001", "@n.001", r"\frac{@n}{2}", "@n^2", r"\sqrt{@n}",
            "@n!", r"@n\pi", "@digits", "@n'", r"@n\mathrm{e}3", r"\frac{1}{@n}", "0.@n", r"@up\,\text{cm}",
            r"x\,=\,@down", r"\$@n1", r"{\bf @up}", "@n,@n",
        ),
        "percent": (r"@n\%", "@n%", r"@n\text{ percent}", r"@n\,\%"),
        "not worked out": (
            "@a + @rest", "@a \\cdot @b", "(@a)(@b)", "@more - @a", r"\frac{@twice}{2}", "@twice/2", "@a(@b)",
            r"@a\,\times\,@b", r"(@a)\,(@b)", r"@a\ + @rest", r"\left(@a\right)\left(@b\right)", r"{@a}({@b})",
            r"@a \ast @b", r"\sqrt{@n^2}", r"|-@n|", r"@a[@b]", r"@a\times@b", r"@n\cdot1", "{@a}{@b}", "@a\u22c6@b",
            "@a\u2218@b", r"(@a)@b",
        ),
    },
    "a negative number": {
        **_of("-@n", _HEDGES, other="@n"),
        "values": (
            "@n", "-@up", "-@n0", r"\pm @n", "|-@n|", "-(-@n)", r"-@n\%", "-@n.0000001", r"@n\,\text{cm}", "--@n",
            "-@n^2",
        ),
    },
    "a large number": {"values": (
        "@a,@b", "@b,@c", "@a,@b,@up", "@a.@b@c", "@a,@b,@c,@c", "@a,@c", "@a{,}@b", "@a@b@up", "@a, @b, @c",
        r"@a\,@b", r"@a,@b,@c\%", "@a.@b@c \\times 10^5", "@a,@b,@c0",
    )},
    "a power of ten": {"values": (
        "10^{@up}", "@k", r"10 \cdot @k", "10^{-@k}", "1e@up", "@k^{10}", "10^@k + 1", "10@k",
    )},
    "a fraction": {
        **_of(r"\frac{@p}{@q}", _HEDGES, other=r"\frac{@up}{@q}"),
        "values": (
            r"\frac{@q}{@p}", r"-\frac{@p}{@q}", r"\frac{@up}{@q}", r"\frac{@p}{@next}", "@short", "@off", "@p:@q",
            "@q/@p", r"\frac{@p}{@q}\pi", r"\sqrt{\frac{@p}{@q}}", r"\frac{@pp}{@q}", r"\frac{@p}{@qq}", "@p",
            r"\frac{@p}{@q}^2", r"\frac{@p}{-@q}", r"x = \frac{@up}{@q}", r"\frac{@up}{@q}\text{ cm}",
            r"\dfrac{@p}{@next}", "@p - @q",
        ),
        "degrees and percent": (
            r"\frac{@p}{@q}^\circ", r"\frac@plain^\circ", r"\frac{@p}{@q}\%", r"\frac{@p}{@q}%", r"\frac{@p}{@q}\,\%",
            r"\frac{@p}{@q}\text{ percent}", "@p/@q\u00b0",
        ),
        "not worked out": (
            r"1 + @left", r"1\ + @left", r"2 \cdot \frac{@p}{@qq}", r"\frac{@p}{@qq} + \frac{@p}{@qq}",
            r"\frac{@p}{@qq}\ + \frac{@p}{@qq}", r"(2)\left(\frac{@p}{@qq}\right)",
            r"\frac{2}{3}\cdot\frac{3}{2}\cdot\frac{@p}{@q}", r"(@p)\left(\frac{1}{@q}\right)", r"@p \div @q \cdot 1",
            r"(\frac{@p}{@qq})(2)",
        ),
    },
    "a negative fraction": {
        "values": (
            r"\frac{@p}{@q}", r"\frac{-@p}{-@q}", r"\frac{-@q}{@p}", r"-\frac{@up}{@q}", r"\frac{-@p}{@next}",
            "-@short", r"-\frac{-@p}{@q}", r"-\frac{@p}{@q}\%", r"-\frac{@p}{@q}^\circ", r"\pm\frac{@p}{@q}",
            r"-\frac{@p}{@q}\ldots", r"-\frac{@p}{@qq} - \frac{@p}{@qq}", r"@p/@q", r"-\frac{@p}{@q}, \frac{@p}{@q}",
            r"-@p",
        ),
    },
    "a mixed number": {"values": (
        r"@wrong\frac{@r}{@q}", r"@w\frac{@q}{@r}", r"@w\cdot\frac{@r}{@q}", r"-@w\frac{@r}{@q}", "@w",
        r"\frac{@r}{@q}", r"@w, \frac{@r}{@q}", r"@w(\frac{@r}{@q})",
    )},
    "ninths": {"values": (
        r"0.\overline{@wrong}", "0.@n", "0.@n@n", r"0.@n\ldots", r"0.0\overline{@n}", r"@n.\overline{@n}",
        r"0.\overline{@n0}", "0.@n@n@n", "0.@n@n@n...",
    )},
    "twentieths": {"values": (
        "@wrong", "@d0001", "@d0000001", "@tenth", r"@d\%", "@percent", "-@d", r"@d\ldots", r"@d^\circ", "1@bare",
        r"@d\text{ or }@wrong", "@bare0000001",
    )},
    "a decimal": {"values": (
        "@wrong", "@d0000001", "@ten", "-@d", r"@d\%", r"@d\ldots", "@d, @wrong", "@n", r"@wrong\,\text{cm}", "@d1",
        "1@d", r"@percent",
    )},
    "money": {"values": (
        "@wrong", "-@d", r"@d\%", "\u20ac@d", r"@d\text{ euros}", r"\$@wrong", r"@d\text{ or }@wrong", "@d1",
        r"@d\text{ cm}",
    )},
    "percent": {"values": (
        r"@up\%", "@up", "@small", r"@d\%", r"@n0\%", r"-@n\%", r"@n\text{ cm}", r"@n\% \text{ or } @up\%",
        r"@n\%\ldots", r"@n.5\%",
    )},
    "an angle": {"values": (
        r"@up^\circ", r"@other^\circ", "@other", r"@n\text{ cm}", r"@n\%", r"-@n^\circ", r"@n\text{ radians}",
        r"@n^\circ, @up^\circ", r"\frac{@n}{180}", r"@n^\circ\text{ or }@other^\circ", r"@n0^\circ",
        r"\approx @n^\circ",
    )},
    "a root": {
        **_of(r"@a\sqrt{@b}", _HEDGES, other=r"@up\sqrt{@b}"),
        "values": (
            r"@up\sqrt{@b}", r"-@a\sqrt{@b}", r"@a\sqrt[3]{@b}", r"\sqrt{@product}", "@short", r"@a\sqrt{@next}",
            r"@a+\sqrt{@b}", r"\frac{@a}{\sqrt{@b}}", r"@a\sqrt{@b}\%", "@a\u221a@next", "@up\u221a@b",
            r"@a\sqrt{-@b}", r"@up\,\sqrt{@b}", "@square",
        ),
    },
    "a multiple of pi": {
        **_of(r"@a\pi", _HEDGES, other=r"@up\pi"),
        "values": (
            "@a", r"@a\pi^2", "@short", r"@up\pi", r"-@a\pi", r"@a\pi r", r"\frac{@a}{\pi}", r"@a + \pi", r"@a\pi\%",
            r"@up\,\pi", "@up\u03c0", r"@a^\pi", r"@a\pi + 1",
        ),
    },
    "a complex number": {"values": (
        "@a-@bi", "@b+@ai", "-@a+@bi", "@a+@up i", "@a@bi", "(@a,@b)", "@a+@b", "@a+@bx", r"@a + @b", r"@a+@bi\ldots",
        r"@a \pm @bi", "@a+@bi, @a-@bi", "@bi", "@a", "@a+@up\\,i",
    )},
    "a polynomial": {"values": (
        "@ax^2-@bx-@c", "@ax^2+@bx+@c", "@ax^2+@bx", "@ax^3+@bx-@c", "@at^2+@bt-@c", "@ax^2+@upx-@c", "-@ax^2+@bx-@c",
        "@ax^2+@bx-@c+C", "@ax^2", r"@ax^2\,+\,@upx\,-\,@c", r"@ax^2+@bx-@c\text{ or }0", "@bx^2+@ax-@c",
        "@ax+@bx-@c", "@ax^2 + @bx \\pm @c", r"@ax^2+@bx-\ldots",
    )},
    "a set": {"values": (
        "[@a,@b]", "(@a,@b)", r"\{@a\}", "@a", "@b", "@a,@a,@b", r"\{@a,@b,@c\}", r"\{@a, @a, @b\}", r"\{@a,@up\}",
        r"\{@minus,@b\}", "@a<x<@b", "[@a,@b)", r"\{@a,@b,\ldots\}", r"\{(@a,@b)\}", r"x\ne @a,@b", "@sum",
        r"@a,\,@up", "@a, @b, @c", "x=@a", r"x = @a \text{ or } x = @up", "]@a,@b[", r"\{@a, @b, @b\}",
        r"@a \text{ but not } @b", r"\emptyset", r"@a\text{ to }@b",
    )},
    "a pair": {"values": (
        "(@b,@a)", "(@minus,@b)", "[@a,@b]", r"\{@a,@b\}", "(@a,@b,0)", "(@a,@up)", "@a", "@sum", "x=@b, y=@a",
        "(@a,@b]", r"(@a,\,@up)", "(@a,@b), (@b,@a)", "(@a,@b.0000001)", "y=@a, x=@b",
        r"(@a, @b) \text{ or } (@b, @a)", "(@a,@b,@c)",
    )},
    "a ray": {"values": (
        r"(@a,\infty]", r"[@a,\infty)", r"(-\infty,@a)", "x<@a", r"x \ge @a", r"(@up,\infty)", "@a", r"[@a,\infty]",
        r"]@a,\infty]", r"[@a,\infty[", r"(@a,-\infty)", r"(@minus,\infty)", r"(\infty, @a)", r"x\,<\,@a",
        r"(@a, @b)", r"x \neq @a", r"(-\infty,\infty)", r"x > @up", r"\left(@a,\infty\right]",
    )},
    "an interval": {"values": (
        "[@a,@b]", "(@a,@b)", "(@a,@b]", "[@a,@up)", r"\{@a,@b\}", "@a,@b", "]@a,@b[", "]@a,@b]", r"@a < x < @b",
        r"@a \le x \le @b", r"[@a,\infty)", "[@b,@a)", "@a", r"[@a,@b)\cup(@c,\infty)", "x < @b", r"@a < x \le @b",
        r"[@minus,@b)",
    )},
    "a union": {"values": (
        r"(-\infty,@a]\cup(@b,\infty)", r"(-\infty,@a)\cup[@b,\infty)", r"(-\infty,@a)\cap(@b,\infty)",
        r"(-\infty,@a)", r"(@b,\infty)", "(@a,@b)", r"x<@a \text{ and } x>@b", r"(-\infty,@a)\cup(@up,\infty)",
        r"[-\infty,@a)\cup(@b,\infty]", r"@a<x<@b", r"]-\infty,@a]\cup[@b,\infty[", r"x \le @a \text{ or } x \ge @b",
        r"(-\infty,@b)\cup(@a,\infty)", r"(-\infty,\infty)", r"(-\infty,@a)\cup(@b,\infty]",
    )},
    "the empty set": {"values": (
        "0", r"\{0\}", r"\{\emptyset\}", r"\mathbb{R}", r"\{1, 2\}", r"(-\infty, \infty)", "5",
        r"\emptyset \cup \{1\}",
    )},
    "a word": {"values": (
        "@other", r"\text{@other}", r"\text{not @w}", r"\text{@w or @other}", "un@w", r"\text{@w and @other}", "5",
        r"\textbf{@other}", r"\text{neither}", "@wx",
    )},
    "a choice": {"values": (
        "@other", "(@other)", r"\text{@w or @other}", "@w@other", r"\text{not @w}", r"\textbf{(@other)}",
        "@w, @other", r"\text{(@other)}",
    )},
    "a number in a base": {"values": (
        "@n", "@n_@up", "@other_@k", "@n_{10}", "@n_{@up}", "-@n_@k", r"@n_@k\text{ or }@n_@up", "@n0_@k",
    )},
    "a percentage that is asked for": {"percent": (r"@up\%", "0.@n", r"@n0\%", "@up%", r"-@n\%")},
    "an angle that is asked for": {"degrees": (r"\frac{@up}{@q}^\circ", r"\frac{@p}{@q}\%", "@p/@next\u00b0")},
    "a ratio": {"values": ("@b:@a", "@a:@b:@b", "@a:@a", "@a@b", "@a.@b", r"@a:@b\text{ or }@b:@a")},
    "a logarithm": {"values": (
        r"\log_@a 2", r"\log @a", r"\log_2 @b", r"\log_2(@a) + 1", "@a", r"2\log_2 @a", r"\ln @a",
    )},
    "letters": {"values": ("@a", "@b", "@a, @c", "@a, @b, @c", r"\text{@a or @b}", "@a@b", r"\text{not @a, @b}")},
    "an inequality": {"values": (
        r"@a\le x<@b", "[@a,@b]", "x>@a", "x<@b", "@a<y<@b", r"x<@a\text{ or }x>@b", "(@a,@up)", r"@a<x\le@b",
        "@b>x>@minus",
    )},
    "a date": {"values": ("@w @up", "@n", "@w", r"\text{May }@n", "@w @n or @up", r"\text{not @w @n}")},
    "a time": {"values": ("@n:@m a.m.", "@up:@m p.m.", r"\text{@n:@m a.m. or p.m.}", "@m:@n p.m.")},
    "polar coordinates": {"values": (
        r"[@a,\frac{\pi}{@b}]", r"(\frac{\pi}{@b},@a)", r"(@a,\frac{\pi}{@a@b})", r"(-@a,\frac{\pi}{@b})",
        r"(@a,\pi)", r"(@a,@b/\pi)", r"r=@a", r"(@a,\frac{\pi}{@b}]",
    )},
    "a line": {"values": ("y=@ax-@b", "y=@bx+@a", "x=@ay+@b", "y<@ax+@b", "y=@ax", "f(x)=@ax^2+@b", "y=-@ax+@b")},
    "a matrix": {"values": (
        r"\begin{pmatrix} @b & @a \\ @c & @d \end{pmatrix}", r"\begin{pmatrix} @a & @c \\ @b & @d \end{pmatrix}",
        "@a, @b, @c, @d", r"\begin{pmatrix} @a & @b \\ @d & @c \end{pmatrix}",
        r"\begin{pmatrix} @a & @b \end{pmatrix}", "@a", r"-\begin{pmatrix} @a & @b \\ @c & @d \end{pmatrix}",
        r"\begin{pmatrix} @a & @b \\ @c & @d \\ 0 & 0 \end{pmatrix}",
    )},
}  # fmt: skip
"""Neighbours of other values, by kind and group."""

AROUND = (
    r"\boxed{@x}", r"So the answer is $\boxed{@x}$.", r"Therefore, we have \[\boxed{@x}\]", r"$$\boxed{@x}$$",
    r"\(\boxed{@x}\)", "**Final Answer:** $\\boxed{@x}$", "### Answer\n\n\\[\n\\boxed{@x}\n\\]", r"\boxed {@x}",
    r"\fbox{@x}", "The final answer is $\\boxed{@x}$. I hope it is correct.",
    r"\begin{align*} S &= 2k + 1 \\ &= \boxed{@x} \end{align*}",
    "<think>Is it \\boxed{@w}? No.</think>\n\nHence $\\boxed{@x}$.",
    r"First, we find $a = \boxed{@w}$. Then the result is $\boxed{@x}$.",
    "**Step 1.** The first part is $\\boxed{@w}$.\n\n**Step 2.** It follows.\n\n**Final answer:** $\\boxed{@x}$",
    "We get $\\boxed{@x}$.\n\nCheck: the conditions hold, so $\\boxed{@x}$.\n\n**Answer:** $\\boxed{@x}$",
    "Case 1 gives $\\boxed{@w}$, which does not count.\nCase 2 gives the answer: $\\boxed{@x}$.",
    "@m\n\nSo the answer is $\\boxed{@x}$.", "@m\n\n$\\boxed{@x}$",
)  # fmt: skip
"""Replies with the right answer @x; @w is another one, and @m stands for a reply of a real model."""
BESIDE = (
    r"\boxed{@x} or \boxed{@w}", r"\boxed{@w} or \boxed{@x}", r"\boxed{@x}, \boxed{@w}", r"\boxed{@w}\boxed{@x}",
    "The result is $\\boxed{@x}$. After a check, the final answer is $\\boxed{@w}$.", r"It is @x, so $\boxed{@w}$.",
    r"It is $@x$.", r"<think>\boxed{@x}</think> The answer is \boxed{@w}.", r"<think>\boxed{@x}",
    r"<think>\boxed{@x}</think>", r"\boxed{@x", r"Either $\boxed{@w}$. Or $\boxed{@x}$.",
    "Maybe $\\boxed{@w}$.\nPerhaps $\\boxed{@x}$.", r"\boxed{@w}", "The answer is @x.", r"\boxed{@x \text{ or } @w}",
    "@m\n\n$\\boxed{@w}$", r"\boxed{}", r"\boxed{@w} @x", r"boxed{@x}",
)  # fmt: skip
"""Replies that do not commit to @x."""


def answers(forms: Mapping[str, Mapping[str, tuple[str, ...]]], least: int, seed: int) -> Iterator[Form]:
    """Yield each form of each kind with drawn values, and draw again until a kind has at least `least` of them."""
    for kind, groups in forms.items():
        rng = random.Random(f"{kind} {seed}")
        n_forms = sum(map(len, groups.values()))
        for _ in range(-(-least // n_forms)):
            values = DRAWN[kind](rng)
            names = re.compile(f"@({'|'.join(sorted(values, key=len, reverse=True))})")
            for group, listed in groups.items():
                for form in listed:
                    text = names.sub(lambda name, values=values: values[name[1]], form)  # type: ignore[misc]
                    yield Form(kind, group, QUESTIONS.get(kind, "What is it?"), values["target"], text, forms is RIGHT)
