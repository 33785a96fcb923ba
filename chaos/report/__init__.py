"""The results of runs, as one page and one JSON file; and every bug that was ever found."""
