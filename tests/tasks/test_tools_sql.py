"""The SQLite worlds, running queries on them, and SQLExplorer."""

import pickle
import sqlite3
import time
from collections import Counter, defaultdict

import gymnasium as gym
import numpy as np
import pytest
from shop_world import WORLD

import llm_envs
from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.tasks.sqlite_world import THEMES, Database, check_world, format_table, generate_world
from llm_envs.tasks.tools.sql_questions import KINDS, LEVELS

assert llm_envs  # registers


def problem(kind, *values):
    return {"world": WORLD, "kind": kind, "values": list(values)}


# The database.


def test_a_query_gives_rows_and_says_where_it_was_cut():
    database = Database(WORLD, max_rows=2)
    result = database.query("SELECT name, NULL AS empty FROM customers ORDER BY id")
    assert result.rows == (("Ada Abel", None), ("Ben Dahl", None))
    assert format_table(result) == "name | empty\nAda Abel | NULL\nBen Dahl | NULL\n(only the first 2 rows are shown)"
    assert format_table(database.query("SELECT id FROM orders WHERE units > 99")) == "id\n(no rows)"
    database.close()
    assert database.query("SELECT COUNT(*) FROM orders").rows == ((4,),)
    assert database.schema().splitlines()[0] == (
        "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, town TEXT, age INTEGER);"
    )


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM orders",
        "UPDATE orders SET units = 1",
        "DROP TABLE orders",
        "UPDATE sqlite_master SET sql = ''",
        "CREATE TABLE t (a)",
        "INSERT INTO orders VALUES (9, 1, 1, 1, '')",
        "ATTACH 'file.db' AS other",
        "VACUUM INTO 'file.db'",
        "PRAGMA query_only = OFF",
        "PRAGMA hard_heap_limit = 1",
        "BEGIN",
        "SELECT 1; SELECT 2",
        "SELECT load_extension('x')",
        "SELECT random()",
        "SELECT CURRENT_TIMESTAMP",
        "SELECT date('now')",
        "SELECT date()",
        "SELECT strftime('%Y', ' NOW ')",
        "SELECT nothing FROM orders",
        "SELECT zeroblob(1000000000)",
        "SELECT '\ud800'",
        "SELECT '\0'",
        "",
        "-- nothing",
        "(" * 4_000,
        " " * 4_001,
    ],
)
def test_what_does_not_read_is_refused_readably(sql):
    database = Database(WORLD)
    with pytest.raises(InvalidActionError, match=r"\w"):
        database.query(sql)
    assert database.query("SELECT COUNT(*), SUM(units) FROM orders").rows == ((4, 17),)


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT COUNT(*) FROM t",
        "WITH RECURSIVE t(x) AS (SELECT printf('%.9000c', 'a') UNION ALL SELECT x || '' FROM t) SELECT MAX(x) FROM t",
    ],
)
def test_a_statement_that_does_not_end_is_stopped_by_its_steps(sql):
    started = time.monotonic()
    with pytest.raises(InvalidActionError, match="more than 200000 steps"):
        Database(WORLD, max_steps=200_000, timeout_s=60).query(sql)
    assert time.monotonic() - started < 30


ROWS = "(WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r LIMIT 100000) SELECT x FROM r)"
LONG = "(SELECT replace(hex(zeroblob(1600)), '0', 'aaa') v)"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT printf('%.*c', 1000000000, 'x')",
        "SELECT printf('%-.1000000000c', 'x')",
        "SELECT format('%.1000000000c', 'x')",
        f"SELECT COUNT(instr(v || x, substr(v, 1, 4800) || 'b')) FROM {LONG}, {ROWS}",
        f"SELECT COUNT(replace(v || x, substr(v, 1, 4800) || 'b', '')) FROM {LONG}, {ROWS}",
    ],
)
def test_a_statement_of_few_long_steps_is_stopped_by_its_time(sql):
    started = time.thread_time()
    with pytest.raises(InvalidActionError, match=r"too much time|a width of five digits"):
        Database(WORLD).query(sql)
    assert time.thread_time() - started < 2.0  # a quarter of a second, and the steps between two looks


def test_formats_are_those_of_sqlite():
    sql = "SELECT printf('%5.2f|%-4d|%s|%%|%.3c|%,d', 3.14159, 7, 'a', 'x', 1234567), printf('%d%%'), printf(NULL)"
    with sqlite3.connect(":memory:") as plain:
        assert Database(WORLD).query(sql).rows == tuple(plain.execute(sql).fetchall())


def test_dates_of_the_data_can_be_taken_apart():
    rows = Database(WORLD).query("SELECT strftime('%m', date), COUNT(*) FROM orders GROUP BY 1").rows
    assert rows == (("01", 1), ("02", 2), ("04", 1))
    assert Database(WORLD).query("SELECT date('2025-01-31', '+1 day')").rows == (("2025-02-01",),)
    assert Database(WORLD).query("SELECT name FROM pragma_table_info('orders')").rows[3] == ("units",)


def test_a_database_is_pickled_as_what_is_in_it():
    database = Database(WORLD)
    database.query("SELECT 1")
    assert pickle.loads(pickle.dumps(database)).query("SELECT MAX(age) FROM customers").rows == ((41,),)


@pytest.mark.parametrize("lookups", [False, True])
def test_worlds_hang_together(lookups):
    rng = np.random.default_rng(0)
    themes = set()
    for _ in range(40):
        world = generate_world(rng, n_left=9, n_right=7, n_links=20, lookups=lookups)
        themes.add(world["theme"])
        check_world(world)
        assert len(world["tables"]) == (5 if lookups else 3)
        theme = THEMES[world["theme"]]
        (linked,) = (
            Database(world)
            .query(
                f"SELECT COUNT(*) FROM {theme.link} k JOIN {theme.left.table} a ON a.id = k.{theme.left.noun}_id "
                f"JOIN {theme.right.table} b ON b.id = k.{theme.right.noun}_id"
            )
            .rows
        )
        assert linked == (20,)
        labels = [row[1] for table in world["tables"] if table["name"] == theme.left.table for row in table["rows"]]
        assert len(set(labels)) == 9
    assert themes == set(THEMES)


# The task.


@pytest.mark.parametrize(
    ("given", "question", "answer"),
    [
        (problem("number", "Ben Dahl"), "What is the age of the customer Ben Dahl?", "41"),
        (problem("group_sum", "toys"), "What is the sum of price over all products whose category is toys?", "42"),
        (
            problem("group_highest", "Dunmore"),
            "Among the customers whose city is Dunmore, which has the highest age? Answer with the name.",
            "Ben Dahl",
        ),
        (
            problem("link_sum", "Dunmore"),
            "What is the sum of quantity over all orders of customers whose city is Dunmore?",
            "17",
        ),
        (
            problem("value_sum", "Ben Dahl"),
            "Take all orders of the customer Ben Dahl. What is the sum of price of their products? (A product counts "
            "once for each of the orders.)",
            "42",
        ),
        (
            problem("right_top", "Dunmore"),
            "Which product has the largest total quantity in the orders of customers whose city is Dunmore? Answer "
            "with its title.",
            "Jade Drum",
        ),
        (
            problem("both_sum", "Dunmore", "toys", 35),
            "What is the sum of quantity over all orders in which the customer's city is Dunmore, the customer's age "
            "is above 35, and the product's category is toys?",
            "10",
        ),
        (
            problem("without_sum", "toys"),
            "What is the sum of age over all customers that have none of the orders with a product whose category is "
            "toys?",
            "25",
        ),
        (
            problem("above_own_average", "toys"),
            "Look at the orders with a product whose category is toys. Add up the quantity of those in which it is "
            "above the average quantity of all orders of the same customer, whatever the product. Give the sum.",
            "14",  # 5 above 3.5, 9 above 5
        ),
        (
            problem("first_sum", "toys"),
            "Of each of the customers take the first of its orders: the one with the earliest date, and of several on "
            "that date the one with the smallest id. Add up the quantity of those of them that are with a product "
            "whose category is toys. Give the sum.",
            "14",
        ),
        (
            problem("leaders_sum", "Dunmore"),
            "Look only at customers whose city is Dunmore. For each category of products, find which of them has the "
            "largest total quantity in its orders with products of that category. Add up the age of those found, each "
            "as often as it was found. Give the sum.",
            "71",  # Ben for toys, Ada for office
        ),
        (
            problem("more_groups", "Ben Dahl"),
            "Count for each of the customers in how many different category groups the products of its orders are. "
            "Add up the age of all customers that have more of them than Ben Dahl. Give the sum.",
            "30",
        ),
    ],
)
def test_questions_and_answers_worked_by_hand(given, question, answer):
    env = gym.make("llm/SQLExplorer-v0")
    assert env.reset(options={"problem": given})[0] == question
    assert env.step(format_answer(answer.lower()))[:4] == ("Correct.", 1.0, True, False)
    env.reset(options={"problem": given})
    wrong = "43" if answer.isdigit() else "Ada Abe"
    assert env.step(format_answer(wrong))[:3] == ("Incorrect.", 0.0, True)


def test_a_number_is_asked_for_as_a_number():
    env = gym.make("llm/SQLExplorer-v0")
    env.reset(options={"problem": problem("number", "Ben Dahl")})
    observation, reward, terminated, *_ = env.step(format_answer("41 or 42"))
    assert (observation, terminated) == ("Error: the answer '41 or 42' is not a whole number.", False)
    assert reward == pytest.approx(-0.1)
    assert env.step(format_tool_call("sql", query="DELETE FROM orders"))[1] == 0.0
    assert env.step(format_tool_call("sql", query="SELECT age FROM customers WHERE id = 2"))[0] == "age\n41"


def test_a_list_of_all_names_is_wrong():
    env = gym.make("llm/SQLExplorer-v0")
    env.reset(options={"problem": problem("group_highest", "Dunmore")})
    assert env.step(format_answer("Ada Abel, Ben Dahl, Leo Lund"))[1] == 0.0


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_the_answer_worked_out_from_the_rows_is_that_of_the_query(level):
    env = gym.make("llm/SQLExplorer-v0", difficulty=level).unwrapped
    kinds = Counter()
    for seed in range(80):
        env.reset(seed=seed)
        kinds[env.problem["kind"]] += 1
        env.step(env.oracle())
        env.step(env.oracle())
        (result,) = env.tool_results
        assert result.output.splitlines()[1:] == [str(env._answer)]
    assert kinds.keys() == set(LEVELS[level])


def test_what_cannot_be_asked_is_refused():
    env = gym.make("llm/SQLExplorer-v0").unwrapped
    tied = problem("right_top", "Dunmore")
    tied["world"] = {**WORLD, "tables": [*WORLD["tables"][:2], {**WORLD["tables"][2], "rows": []}]}
    for given, complaint in (
        (problem("nothing"), "its kind is none of"),
        (problem("number", "Nobody"), "no answer, or several"),
        (problem("number"), "do not fit"),
        (tied, "no answer, or several"),
        (problem("number", "Ben Dahl") | {"world": {"theme": "shop", "tables": [{"name": "x; y"}]}}, "database"),
        (problem("number", "Ben Dahl") | {"world": {"theme": "zoo", "tables": []}}, "do not fit"),
        (
            problem("number", "Ben Dahl")
            | {"world": {**WORLD, "tables": [{**WORLD["tables"][0], "rows": {}}, *WORLD["tables"][1:]]}},
            "must be a list",
        ),
        (
            problem("number", "Ben Dahl")
            | {"world": {**WORLD, "tables": [{**WORLD["tables"][0], "name": ["x"]}, *WORLD["tables"][1:]]}},
            "must be texts",
        ),
    ):
        with pytest.raises(InvalidConfigError, match=complaint):
            env.reset(options={"problem": given})


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_the_best_constant_answer_wins_no_more_than_the_chance_rate(level):
    env = gym.make("llm/SQLExplorer-v0", difficulty=level).unwrapped
    env.reset(seed=0)
    answers, n = defaultdict(Counter), 600 if level == "expert" else 1_500
    for _ in range(n):
        drawn = env.generate()
        answers[drawn["kind"], drawn["world"]["theme"]][env._drawn[1]] += 1
    assert sum(counts.most_common(1)[0][1] for counts in answers.values()) / n <= env.chance_rate
    assert all(kind in KINDS for kind, _ in answers)
