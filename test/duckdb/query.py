"""Reads a JSON list of queries, and writes a JSON list of their rows."""

import json
import sys

import duckdb

connection = duckdb.connect()
connection.execute("SET TimeZone = 'UTC'")
connection.execute("SET enable_progress_bar = false")  # it goes to standard output, which has the answer
json.dump([connection.execute(query).fetchall() for query in json.load(sys.stdin)], sys.stdout, default=str)
