"""Whole-data-set verbs, one a module: pack, index, verify. They return reports and never touch the terminal."""
