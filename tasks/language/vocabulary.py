"""Common words to build texts from: three to eight letters each, for every first letter but x."""

from __future__ import annotations

__all__ = ["BY_FIRST", "BY_LAST", "KEYWORDS", "VOCABULARY"]

_WORDS = """
about above acorn again amber angle apple april arrow autumn baker banana basket beach berry birds black bloom board
bread bridge bright brown cabin calm candle canyon carpet castle cedar chalk cherry circle clean cliff cloud clover
coast cold copper coral cotton cream curtain daily dance dark dawn deep desert dinner distant drift dry dune dust
eagle early earth east echo eight elder elm empty evening every fabric falcon farm feather fern field finch flame
flat flute foam fog forest fox fresh frost fruit garden gate gentle giant glass gold grain grass gravel green grove
hammer harbor harvest hawk hazel heather hidden high hill hollow honey horse house humble icy idle igloo indigo ink
inland inner iris iron island ivory jacket jade jasmine jelly jewel journey judge juice july jump june kettle kind
kitchen kite knight knot ladder lake lantern large late leaf lemon level light lily linen lion little lively loaf
long maple marble market meadow mellow mild milk mint mirror misty moon morning moss mountain music narrow near nest
never new night nine noble north novel nutmeg oak oasis oat ocean old olive onion open orange orbit orchard otter
oval owl paper parade pasture path pearl pebble pepper piano pine plain planet plum pond poplar quail quaint quarry
quartz queen quick quiet quilt rabbit rain rapid raven red reed ribbon ripe river road robin rose round rustic salt
sand scarlet seven shade sharp shell shore silent silver simple sky slow small smoke snow soft south spring stone
storm stream summer sunny table tall tea tender thin thistle thorn tide tiger timber tiny tower trail train tulip
twelve ultra umber under unit upland upper useful usual vale valley vanilla vast velvet very village vine violet
vivid voice wagon walnut warm water wave west wheat white wide willow wind winter wolf wood yard year yellow yoga
young zebra zenith zero zest zigzag zinc
"""
VOCABULARY = tuple(_WORDS.split())
KEYWORDS = tuple(word for word in VOCABULARY if 4 <= len(word) <= 7)
"""Those that a text may be asked to use."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
BY_FIRST = {letter: tuple(word for word in VOCABULARY if word[0] == letter) for letter in _LETTERS}
BY_LAST = {letter: tuple(word for word in VOCABULARY if word[-1] == letter) for letter in _LETTERS}
