"""A small database of a shop, for tasks that ask questions about one."""

WORLD = {
    "theme": "shop",
    "tables": [
        {
            "name": "customers",
            "columns": [["id", "INTEGER PRIMARY KEY"], ["name", "TEXT"], ["town", "TEXT"], ["age", "INTEGER"]],
            "rows": [[1, "Ada Abel", "Dunmore", 30], [2, "Ben Dahl", "Dunmore", 41], [3, "Leo Lund", "Alderby", 25]],
        },
        {
            "name": "products",
            "columns": [["id", "INTEGER PRIMARY KEY"], ["title", "TEXT"], ["category", "TEXT"], ["price", "INTEGER"]],
            "rows": [[1, "Blue Kite", "toys", 12], [2, "Jade Drum", "toys", 30], [3, "Tiny Tower", "office", 7]],
        },
        {
            "name": "orders",
            "columns": [
                ["id", "INTEGER PRIMARY KEY"],
                ["customer_id", "INTEGER REFERENCES customers(id)"],
                ["product_id", "INTEGER REFERENCES products(id)"],
                ["units", "INTEGER"],
                ["date", "TEXT"],
            ],
            "rows": [
                [1, 1, 1, 5, "2025-01-03"],
                [2, 1, 3, 2, "2025-02-14"],
                [3, 2, 2, 9, "2025-02-20"],
                [4, 2, 1, 1, "2025-04-01"],
            ],
        },
    ],
}
