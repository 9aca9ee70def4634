"""Repairs that count, and hostile source that must not: the tests run in a fresh shell.

`price.py` has no way to the system; `system.py` has `os`, `sys` and `getattr` already, so there only the run itself and
the second run, with the mistake put back, stand against a forger.
"""

import dataclasses

import pytest
from shells import make_shell

from llm_envs.tasks.repository.judging import intrusions, judge
from llm_envs.tasks.repository.mutations import Mutation
from llm_envs.tasks.repository.prepared import Manifest, Prepared, RepositoryProblem
from llm_envs.tasks.repository.running import run_tests

PRICE = """\
from functools import reduce


def total(prices, discount=0):
    found = sum(prices) - discount
    if found < 0:
        return 0
    return found
"""
SYSTEM = """\
import os
import sys


def known(name):
    return name in sys.modules and bool(os.sep) and getattr(sys, "path") is not None
"""
TESTS = """\
import unittest

from shop.price import total
from shop.system import known


class Prices(unittest.TestCase):
    def test_total(self):
        self.assertEqual(total([1, 2]), 3)

    def test_discount(self):
        self.assertEqual(total([5], 2), 3)

    def test_floor(self):
        self.assertEqual(total([1], 2), 0)

    def test_known(self):
        self.assertTrue(known("sys"))
"""
FILES = {"shop/__init__.py": "", "shop/price.py": PRICE, "shop/system.py": SYSTEM, "tests/test_shop.py": TESTS}
NAMES = tuple(f"test_shop.Prices.test_{name}" for name in ("discount", "floor", "known", "total"))
MUTATION = Mutation("shop/price.py", "total", "operator", PRICE.index("- discount"), "-", "+")
PROBLEM = RepositoryProblem((MUTATION,), "train", dict.fromkeys(NAMES[:2], ""))
WRONG = PRICE.replace("- discount", "+ discount")


@pytest.fixture(autouse=True)
def works():
    with make_shell():
        pass


@pytest.fixture
def prepared(tmp_path):
    sources = ("shop/__init__.py", "shop/price.py", "shop/system.py")
    manifest = Manifest("shop", "", "", "", (), "unittest", ("tests/test_shop.py",), NAMES, sources, 60.0)
    return Prepared(tmp_path, manifest, {path: text.encode() for path, text in FILES.items()}, {PROBLEM.key: PROBLEM})


def judged(prepared, **changed):
    files = {"shop/__init__.py": "", "shop/price.py": WRONG, "shop/system.py": SYSTEM}
    files |= {f"shop/{name}.py": text for name, text in changed.items()}
    found = judge(prepared, PROBLEM, {path: text.encode() for path, text in files.items()})
    return found.is_repaired, found.reason


def test_the_original_is_right_whatever_its_layout(prepared):
    assert judged(prepared, price=PRICE) == (True, "the source is the original")
    assert judged(prepared, price=PRICE.replace("found < 0:", "(found<0):  # below")) == (
        True,
        "the source is the original",
    )


def test_another_repair_is_right(prepared):
    other = "def total(prices, discount=0):\n    import math\n    return max(math.fsum(prices) - discount, 0)\n"
    assert judged(prepared, price=other) == (True, "all 4 tests pass")


def test_no_repair_and_half_a_repair_are_wrong(prepared):
    assert judged(prepared) == (False, "nothing was repaired")
    half = WRONG.replace("found < 0", "discount > sum(prices)")
    assert judged(prepared, price=half) == (False, "1 of 4 tests do not pass")
    assert judged(prepared, price="def total(:") == (False, "4 of 4 tests do not pass")


def test_making_up_for_a_mistake_elsewhere_is_wrong(prepared):
    around = (
        "from shop import price\n\nold = price.total\n\n\n"
        "def total(prices, discount=0):\n    return old(prices, -discount)\n\n\nprice.total = total\n"
    )
    assert judged(prepared, __init__=around) == (False, "the tests pass with the mistakes in their functions")


def test_a_deleted_project_is_wrong(prepared):
    assert judge(prepared, PROBLEM, {}) == dataclasses.replace(judge(prepared, PROBLEM, {}), is_repaired=False)


HOSTILE = {
    "exit at import": "import os\nos._exit(0)\n",
    "exit by a name": "exit(0)\n",
    "patches pytest": "import pytest\npytest.Item.runtest = lambda self: None\n",
    "patches unittest": "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\n",
    "finds the reporter": "import gc\ngc.get_objects()\n",
    "by a module's module": "import functools\nfunctools.sys.modules\n",
    "from a module": "from dataclasses import sys\n",
    "by a frame": "try:\n    1 / 0\nexcept Exception as error:\n    error.__traceback__.tb_frame.f_back\n",
    "by subclasses": "().__class__.__base__.__subclasses__()\n",
    "by a text": "eval('1')\n",
    "by attributes in parts": "g = getattr\ng(print, '__sel' + 'f__')\n",
    "by a dunder in a text": "NAME = '__globals__'\n",
    "opens the results": "open('/tmp/x', 'a')\n",
    "sets a hook": "def __getattr__(name):\n    return None\n",
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_ways_out_of_a_file_are_refused_without_a_run(prepared, attack):
    correct, reason = judged(prepared, price=HOSTILE[attack] + WRONG)
    assert not correct and reason.startswith("shop/price.py has new ")


IN_THE_PROCESS = {
    "exit at import": ("os.kill(os.getpid(), 9)\n", "new os."),
    "exit without a new name": ("sys.modules['os'].abort()\n", "4 of 4 tests do not pass"),
    "patches assertions": (
        "case = sys.modules['unittest'].TestCase\ncase.assertEqual = case.assertTrue = lambda *given: None\n",
        "with the mistakes in their functions",
    ),
    "runs no test": (
        "sys.modules['unittest'].TestCase.run = lambda self, result: (result.startTest(self), result.stopTest(self))\n",
        "with the mistakes in their functions",
    ),
}


@pytest.mark.parametrize("attack", IN_THE_PROCESS)
def test_source_with_ways_out_is_found_by_the_runs(prepared, attack):
    text, reason = IN_THE_PROCESS[attack]
    correct, found = judged(prepared, system=SYSTEM + text)
    assert not correct and reason in found


FORGER = """\
import os
for name in os.listdir("/tmp"):
    if len(name) == 32:
        with open("/tmp/" + name, "a") as file:
            for test in {names}:
                file.write('["0", "' + test + '", "passed", ""]\\n')
            file.write('["0", "", "end", ""]\\n')
{then}
"""


@pytest.mark.parametrize("then", ["", "os._exit(0)"])
def test_results_without_the_number_of_the_run_count_for_nothing(then):
    text = FORGER.format(names=list(NAMES), then=then)
    files = {path: content.encode() for path, content in (FILES | {"shop/__init__.py": text}).items()}
    run = run_tests(files, "unittest", site=None, only=["tests/test_shop.py"])
    assert not run.is_complete and run.passed == set()


def test_the_number_is_not_in_the_shell():
    spy = (
        "import glob, re, sys\n"
        "names = [n for n in glob.glob('/tmp/*') if re.fullmatch(r'/tmp/[0-9a-f]{32}', n)]\n"
        "texts = [open('/proc/self/environ').read(), open('/proc/self/cmdline').read(), open(names[0]).read()]\n"
        "print(len(names), any(n[5:] in t for n in names for t in texts), '__pycache__' in sys.path)\n"
    )
    files = {path: content.encode() for path, content in (FILES | {"shop/__init__.py": spy}).items()}
    run = run_tests(files, "unittest", site=None, only=["tests/test_shop.py"])
    assert run.said == "1 False False" and run.passed == set(NAMES)


def test_intrusions_allow_what_the_file_and_the_project_have():
    before = b"import os\n\n\ndef f(x):\n    return os.sep + x._name\n"
    assert intrusions(before, before + b"import math, shop\nprint(os.sep, math.pi)\n", {"shop"}) == set()
    assert intrusions(before, before + b"x = y._other\n", {"_other"}) == set()
    assert intrusions(before, before + b"os.remove(y._other)\n") == {"os.remove", "_other"}
    assert intrusions(before, b"def f(:") == set()
