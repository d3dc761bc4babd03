"""The papers' analyses: questions put to models, by name, with a table, a figure and records of their own."""
