"""The stories of `llm/WordProblems-v0`: each draws its sentences, a question, and the expression of the answer."""

from __future__ import annotations

from typing import NamedTuple

from llm_envs.tasks.draws import Random, between, pick, sample, shuffled
from llm_envs.tasks.people import PEOPLE

__all__ = ["STORIES", "Story", "network", "relations", "stock"]


class Story(NamedTuple):
    """A word problem before anything irrelevant is told."""

    first: list[str]
    """Sentences that come first, in this order."""
    rest: list[str]
    """The others, in the order in which they are told."""
    question: str
    expression: str
    """Its value is the answer."""
    asides: list[str]
    """Sentences with numbers that have nothing to do with the answer."""


_GOODS = ("apple", "bun", "candle", "pencil", "ribbon", "plate", "lemon", "egg", "notebook", "spoon", "mug", "onion")
_THINGS = ("marbles", "stamps", "shells", "beads", "coins", "cards", "stickers", "buttons", "pebbles", "badges")
_PRODUCTS = ("bottle", "brick", "toy", "lamp", "shirt", "tile", "chair", "basket")


def shopping(random: Random, size: int) -> Story:
    """Buy `size` kinds of goods; some prices are told by way of another."""
    name, other = sample(random, PEOPLE, 2)
    goods = sample(random, _GOODS, size)
    price, terms, total, lines = between(random, 2, 9), [], 0, []
    base = price
    for i, good in enumerate(goods):
        count = between(random, 2, 12)
        if i == 0:
            text = str(price)
            line = f"{name} buys {count} {good}s at {price} coins each."
        elif size > 2 and random() < 0.5:
            more = between(random, 2, 6)
            price, text = base + more, f"({base}+{more})"
            line = f"{name} buys {count} {good}s, and {_a(good)} costs {more} coins more than {_a(goods[0])}."
        else:
            price = between(random, 2, 12)
            text = str(price)
            line = f"{name} {pick(random, ('also buys', 'then takes'))} {count} {good}s for {price} coins apiece."
        terms.append(f"{count}*{text}")
        total += count * price
        lines.append(line)
    asides = [
        f"The market has {between(random, 11, 60)} stalls.",
        f"{other} buys {between(random, 2, 12)} {goods[0]}s there and pays for them alone.",
        f"{name} walked {between(random, 5, 45)} minutes to get there.",
        f"Last year {_a(goods[-1])} cost {between(random, 2, 9)} coins.",
    ]
    spent = "+".join(terms)
    if random() < 0.5:
        money = total + between(random, 1, 40)
        first = f"{name} goes to the market with {money} coins."
        return Story([first], lines, f"How many coins does {name} have left?", f"{money}-({spent})", asides)
    first = f"{name} goes to the market."
    return Story([first], lines, f"How many coins does {name} spend in all?", spent, asides)


def stock(random: Random, size: int) -> Story:
    """Follow what is put into a box and taken out of it, `size` times, in order."""
    name, other = sample(random, PEOPLE, 2)
    thing, foreign = sample(random, _THINGS, 2)
    value = between(random, 20, 90)
    first, expression, lines = f"There are {value} {thing} in the blue box.", str(value), []
    for i in range(size):
        who, kind = pick(random, (name, other)), random()
        if kind < 0.25:
            bags, each = between(random, 2, 6), between(random, 3, 12)
            lines.append(f"{who} puts {bags} bags of {each} {thing} each into the blue box.")
            expression, value = f"{expression}+{bags}*{each}", value + bags * each
        elif kind < 0.5 and value > 12:
            count = between(random, 5, min(40, value - 5))
            lines.append(f"{who} takes {count} {thing} out of the blue box.")
            expression, value = f"{expression}-{count}", value - count
        elif kind < 0.65 and value % 2 == 0:
            lines.append(f"Then half of the {thing} in the blue box are given away.")
            expression, value = f"({expression})/2", value // 2
        elif kind < 0.75 and value < 200:
            lines.append(f"Then {who} puts in enough {thing} to double the number in the blue box.")
            expression, value = f"({expression})*2", value * 2
        else:
            count = between(random, 5, 40)
            lines.append(f"{who} {'then ' if i else ''}adds {count} {thing} to the blue box.")
            expression, value = f"{expression}+{count}", value + count
    asides = [
        f"The red box next to it holds {between(random, 10, 90)} {thing}.",
        f"{name} has {between(random, 3, 40)} {foreign} at home.",
        f"The blue box is {between(random, 12, 60)} centimetres wide.",
        f"{other} is {between(random, 7, 70)} years old.",
    ]
    return Story([first], lines, f"How many {thing} are in the blue box at the end?", expression, asides)


def relations(random: Random, size: int) -> Story:
    """Follow `size` comparisons from person to person, told in any order."""
    names = sample(random, PEOPLE, size + 2)
    thing, foreign = sample(random, _THINGS, 2)
    value = between(random, 6, 30)
    values, texts, lines = [value], [str(value)], [f"{names[0]} has {value} {thing}."]
    for i in range(size):
        kind, amount = random(), between(random, 2, 15)
        if kind < 0.35 and value < 60:
            times = between(random, 2, 5)
            lines.append(f"{names[i + 1]} has {times} times as many {thing} as {names[i]}.")
            value, text = value * times, f"({texts[-1]})*{times}"
        elif kind < 0.65 and value > amount + 1:
            lines.append(f"{names[i + 1]} has {amount} {thing} fewer than {names[i]}.")
            value, text = value - amount, f"({texts[-1]}-{amount})"
        else:
            lines.append(f"{names[i + 1]} has {amount} more {thing} than {names[i]}.")
            value, text = value + amount, f"({texts[-1]}+{amount})"
        values.append(value)
        texts.append(text)
    asides = [
        f"{names[-1]} has {between(random, 2, 15)} more {thing} than {pick(random, names[:-1])}.",
        f"{names[0]} has {between(random, 5, 60)} {foreign}, too.",
        f"{names[1]} began to collect {between(random, 2, 20)} years ago.",
        f"Album pages hold {between(random, 4, 24)} {foreign} each.",
    ]
    if random() < 0.5:
        return Story([], shuffled(random, lines), f"How many {thing} does {names[size]} have?", texts[-1], asides)
    members = f"{', '.join(names[:size])} and {names[size]}"
    question = f"How many {thing} do {members} have together?"
    return Story([], shuffled(random, lines), question, "+".join(texts), asides)


def production(random: Random, size: int) -> Story:
    """Make things at `size` machines, lose some, and pack the rest into boxes."""
    product, place = pick(random, _PRODUCTS), pick(random, ("factory", "workshop", "plant"))
    terms, total, lines = [], 0, []
    machines = ("first", "second", "third", "fourth")
    for i in range(size - 1):
        rate, hours = between(random, 6, 40), between(random, 2, 9)
        lines.append(f"The {machines[i]} machine makes {rate} {product}s an hour and runs for {hours} hours.")
        terms.append(f"{rate}*{hours}")
        total += rate * hours
    lost, box = between(random, 2, min(20, total - 1)), between(random, 4, 15)
    lines.append(f"Of the {product}s made in these hours, {lost} turn out to be broken and are thrown away.")
    good = f"({'+'.join(terms)}-{lost})"
    asides = [
        f"The {place} employs {between(random, 12, 90)} people.",
        f"The machines were bought {between(random, 2, 20)} years ago.",
        f"One {product} sells for {between(random, 3, 30)} coins.",
        f"Yesterday {between(random, 20, 200)} {product}s were made and shipped.",
    ]
    first, kind = f"A {place} makes {product}s.", random()
    packed = f"The good ones are packed into boxes of {box}, as many boxes as can be filled."
    if kind < 0.4:
        return Story([first], [*lines, packed], "How many boxes are full?", f"{good}//{box}", asides)
    if kind < 0.6:
        question = f"How many {product}s are left over after the boxes have been filled?"
        return Story([first], [*lines, packed], question, f"{good}%{box}", asides)
    return Story([first], lines, f"How many good {product}s are there?", good[1:-1], asides)


def sharing(random: Random, size: int) -> Story:
    """Find the parts of a sum from how they differ."""
    names = sample(random, PEOPLE, 3)
    thing, foreign = sample(random, _THINGS, 2)
    low, more = between(random, 8, 60), between(random, 2, 30)
    total, lines = 2 * low + more, [f"{names[1]} has {more} {thing} more than {names[0]}."]
    first = f"{names[0]} and {names[1]} have {2 * low + more} {thing} together."
    whose = int(random() * 2)
    expression, value = (f"({total}-{more})/2", low) if whose == 0 else (f"({total}+{more})/2", low + more)
    name = names[whose]
    for _ in range(size - 2):
        count = between(random, 2, 25)
        if random() < 0.5 and value > count + 2:
            lines.append(f"Then {name} gives {count} {thing} to a museum.")
            expression, value = f"{expression}-{count}", value - count
        else:
            lines.append(f"Then {name} finds {count} more {thing}.")
            expression, value = f"{expression}+{count}", value + count
    asides = [
        f"{names[2]} has {between(random, 5, 60)} {thing}, which are not counted here.",
        f"{names[0]} also has {between(random, 5, 60)} {foreign}.",
        f"They have known each other for {between(random, 2, 20)} years.",
        f"A box of {thing} weighs {between(random, 100, 900)} grams.",
    ]
    question = f"How many {thing} does {name} have{' now' if size > 2 else ''}?"
    return Story([first], lines, question, expression, asides)


def journey(random: Random, size: int) -> Story:
    """Add up a journey's parts, each told by its speed and time, or as a distance."""
    name, other = sample(random, PEOPLE, 2)
    vehicle = pick(random, ("bus", "train", "boat", "bicycle", "horse cart"))
    terms, total, lines = [], 0, []
    for i in range(size):
        start = "Then" if i else "First"
        if i == 0 or random() < 0.7:
            speed, hours = between(random, 8, 60), between(random, 2, 8)
            lines.append(f"{start} {name} goes at {speed} kilometres an hour for {hours} hours.")
            terms.append(f"{speed}*{hours}")
            total += speed * hours
        else:
            length = between(random, 5, 90)
            lines.append(f"{start} a stretch of {length} kilometres follows.")
            terms.append(str(length))
            total += length
    asides = [
        f"The {vehicle} has seats for {between(random, 2, 60)} people.",
        f"The ticket costs {between(random, 3, 60)} coins.",
        f"{name} rests for {between(random, 10, 50)} minutes on the way without moving on.",
        f"{other} lives {between(random, 5, 90)} kilometres away from {name}.",
    ]
    if random() < 0.5:
        whole = total + between(random, 10, 200)
        first = f"{name} travels by {vehicle} to a town {whole} kilometres away."
        question = "How many kilometres of the way to the town are left?"
        return Story([first], lines, question, f"{whole}-({'+'.join(terms)})", asides)
    first = f"{name} travels by {vehicle}."
    return Story([first], lines, f"How many kilometres does {name} travel in all?", "+".join(terms), asides)


def network(random: Random, size: int) -> Story:
    """Follow `size` comparisons of what people have, told in any order; each needs the one drawn before it.

    The asides compare in the same way, but nothing that is needed depends on them.
    """
    n_asides = 2 * size // 5
    owners = sample(random, [(who, thing) for who in PEOPLE for thing in _THINGS], size + n_asides + 1)
    values = [between(random, 20, 90)]
    lines = [f"{owners[0][0]} has {values[0]} {owners[0][1]}."]
    for i in range(1, len(owners)):
        near = i - 1 if i <= size else int(random() * i)
        far = int(random() * min(i, size + 1))
        value, line = _compared(random, owners, values, i, near, far)
        values.append(value)
        lines.append(line)
    who, thing = owners[size]
    question = f"How many {thing} does {who} have?"
    return Story([], shuffled(random, lines[: size + 1]), question, str(values[size]), lines[size + 1 :])


def _compared(
    random: Random, owners: list[tuple[str, str]], values: list[int], i: int, near: int, far: int
) -> tuple[int, str]:
    """Return the number of things of the i-th owner, and a sentence that gives it by way of one or two others."""
    (who, thing), (other, others), (third, thirds) = owners[i], owners[near], owners[far]
    start, value, kind = f"{who} has", values[near], random()
    if value > 400 or (kind < 0.1 and value > 60):
        if value % 2 == 0:
            return value // 2, f"{start} half as many {thing} as {other} has {others}."
        less = between(random, value // 3, value - 20)
        return value - less, f"{start} {less} {thing} fewer than {other} has {others}."
    if kind < 0.25 and value < 150:
        times = between(random, 2, 4)
        return value * times, f"{start} {times} times as many {thing} as {other} has {others}."
    if kind < 0.55 and far != near:
        return value + values[
            far
        ], f"{start} as many {thing} as {other} has {others} and {third} has {thirds} together."
    if kind < 0.75 and value > values[far] + 10:
        return value - values[far], f"{who}'s {thing} are as many as {other}'s {others} less {third}'s {thirds}."
    more = between(random, 3, 60)
    return value + more, f"{start} {more} more {thing} than {other} has {others}."


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


STORIES = (shopping, stock, relations, production, sharing, journey)
